// Published runs: built from adversarial texts while sessions draft from them, and are switched between the
// namespace and its published runs. A session that reads the runs drafts their tokens and its own only.
#include <unordered_set>

#include "common.h"
#include "publish/shared_runs.h"

namespace suffixsvc {

namespace {

// Tokens of the namespace's hot text; no published text has them.
constexpr Token kSecret = 1 << 20, kSecrets = 50;

bool is_secret(Token token) { return token >= kSecret && token < kSecret + kSecrets; }

struct Published {
    std::shared_ptr<Segment> segment;
    std::unordered_set<Token> tokens;
};

// Runs of texts that several principals share parts of; null if there are none.
Published publish(const std::string& path, std::mt19937& random) {
    Text tokens;
    std::vector<std::uint64_t> lengths;
    std::vector<std::uint32_t> principals;
    const std::size_t n = 2 + random() % 12;
    for (std::size_t k = 0; k < n; ++k) {
        Text text = adversarial_text(random, 200);
        if (!tokens.empty() && random() % 4) {
            const std::size_t first = random() % tokens.size();
            const std::size_t last = first + random() % (tokens.size() - first);
            text.insert(text.end(), tokens.begin() + static_cast<long>(first),
                        tokens.begin() + static_cast<long>(last));
        }
        if (random() % 8 == 0) text.clear();
        lengths.push_back(text.size());
        principals.push_back(static_cast<std::uint32_t>(random() % n));
        tokens.insert(tokens.end(), text.begin(), text.end());
    }
    SegmentJob job;
    const SharedRuns runs = shared_runs({tokens, lengths, principals}, 2 + random() % 2, 2, job);
    Texts texts;
    std::size_t at = 0;
    for (const std::uint64_t length : runs.lengths) {
        const auto first = runs.tokens.begin() + static_cast<long>(at);
        texts.add(Text(first, first + static_cast<long>(length)), 0, texts.lsns.size() + 1);
        at += length;
    }
    require(at == runs.tokens.size(), "lengths of runs do not add up");
    if (texts.lsns.empty()) return {};
    return {build(path, texts, 0), {runs.tokens.begin(), runs.tokens.end()}};
}

}  // namespace

void stress_publishing(const StressArguments& arguments) {
    const auto hot = std::make_shared<Index>(), published = std::make_shared<Index>();
    const auto learner = std::make_shared<Learner>(), own_learner = std::make_shared<Learner>();
    std::mt19937 random(arguments.seed);
    Text secret;
    for (Token t = 0; t < 400; ++t) secret.push_back(kSecret + t % kSecrets);
    hot->add(secret, 0, 2);
    std::atomic<std::uint32_t> writers{3};
    const CostCurve curve = linear_cost(19, 0.0);
    Threads threads;
    for (std::uint32_t k = 0; k < 3; ++k)
        threads.emplace_back([&, seed = random() + k](std::stop_token stopped) {
            std::mt19937 mine(seed);
            while (!stopped.stop_requested()) {
                Session session(hot, {}, learner, writers++, 16);
                session.read_from({published}, own_learner);
                std::jthread switching([&, other = mine()](std::stop_token ended) {  // back and forth
                    std::mt19937 chance(other);
                    while (!ended.stop_requested() && chance() % 8) {
                        session.read_from({hot, published}, learner);
                        session.read_from({published}, own_learner);
                    }
                });
                for (int step = 0; step < 12; ++step) {
                    session.append(step % 3 ? adversarial_text(mine, 6) : Text{kSecret, kSecret + 1}, true);
                    (void)session.draft(16, curve, step % 2 ? Shape::tree : Shape::chain);
                }
                switching.request_stop();
                switching.join();
                // From now on it reads the runs only, whatever it read before.
                for (int step = 0; step < 8; ++step) {
                    session.append(Text{kSecret + static_cast<Token>(mine() % 40)}, true);
                    const Text own = session.text(0, session.length());
                    const std::unordered_set<Token> known(own.begin(), own.end());
                    for (const DraftToken& token : session.draft(16, curve, Shape::tree))
                        if (is_secret(token.token) && !known.contains(token.token))
                            fail("draft", "a token of the namespace reached a restricted session");
                }
                if (mine() % 2) session.retract();
            }
        });
    for (int round = 0; round < arguments.rounds; ++round) {
        const Published next = publish(arguments.folder + "/published.seg", random);
        published->segments.set(next.segment ? SegmentList::Segments{next.segment} : SegmentList::Segments{});
        if (next.segment) require_sound(*next.segment);
        for (const Token token : next.tokens) require(!is_secret(token), "a secret was published");
        if (round % 3 == 0) published->segments.set({});
        published->collect();
    }
    stop(threads);
    require_sound(*hot);
    std::remove((arguments.folder + "/published.seg").c_str());
}

}  // namespace suffixsvc
