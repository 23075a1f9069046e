// The hot index: first single-threaded, random operations with check() after each; then threads that step,
// write, retract and read concurrently; then one namespace under sessions, bulk writers, removals, and
// readers with stale cursors that verify known contexts. At the end all counts must be exact. Also concurrent
// removals of texts with a common prefix.
#include <map>

#include "common.h"

namespace suffixsvc {

namespace {

// Half of the tokens are the limits of int32 now and then; most repeat.
Text some_text(std::mt19937& random) { return adversarial_text(random, 80); }

// texts, and the number of leading tokens that are context only
using Kept = std::vector<std::pair<Text, std::size_t>>;

// Compares all n-grams of up to four tokens with a brute-force count.
void check_counts(Index& index, const Kept& texts) {
    index.propagate_counts();
    std::map<Text, std::uint64_t> truth;
    for (const auto& [text, uncounted] : texts)
        for (std::size_t end = uncounted; end < text.size(); ++end)
            for (std::size_t n = 1; n <= std::min<std::size_t>(4, end + 1); ++n)
                ++truth[Text(text.begin() + static_cast<std::ptrdiff_t>(end + 1 - n),
                             text.begin() + static_cast<std::ptrdiff_t>(end + 1))];
    for (const auto& [gram, n] : truth)
        if (gram.size() <= index.max_context() && index.count(gram) != n)
            fail("counts", "a count differs from the oracle's");
    for (std::uint32_t n = 1; n <= std::min(4u, index.max_context()); ++n) {
        const NgramCounts found = index.ngrams(n);
        for (std::size_t i = 0; i < found.counts.size(); ++i)
            if (const auto gram = std::span(found.tokens).subspan(i * n, n);
                !truth.contains(Text(gram.begin(), gram.end())))
                fail("counts", "an n-gram is counted that is nowhere");
    }
}

void alone(std::uint32_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed + static_cast<std::uint32_t>(round));
        Index index(1u << (random() % 8), round % 2 == 0);
        Kept texts;
        for (int op = 0; op < 30; ++op) {
            if (!texts.empty() && random() % 3 == 0) {
                const std::size_t i = random() % texts.size();
                if (!index.remove(texts[i].first, texts[i].second)) fail("remove", "a text is not found");
                texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(i));
            } else {
                Text text = some_text(random);
                const std::size_t uncounted = random() % 3 == 0 ? std::min<std::size_t>(2, text.size()) : 0;
                index.add(text, uncounted, static_cast<std::uint32_t>(random() % 4));
                texts.emplace_back(std::move(text), uncounted);
            }
            require_sound(index);
        }
        check_counts(index, texts);
        for (const auto& [text, uncounted] : texts) index.remove(text, uncounted);
        if (index.stats().nodes != 1) fail("remove", "nodes are left behind");
    }
}

void together(std::uint32_t seed, int rounds) {
    auto shared = std::make_shared<Index>(64);
    auto other = std::make_shared<Index>(64);
    auto learner = std::make_shared<Learner>();
    const CostCurve curve = linear_cost(19, 0.02);
    std::atomic<std::uint32_t> writers{2};
    Threads threads;
    for (std::uint32_t k = 0; k < 8; ++k)
        threads.emplace_back([&, k] {
            std::mt19937 random(seed * 31 + k);
            for (int round = 0; round < rounds; ++round) {
                const Text prompt = some_text(random);
                if (k == 0) {  // bulk writer and remover
                    other->add(prompt, 0, writers++);
                    require_sound(*other);
                    if (!other->remove(prompt, 0)) fail("remove", "a text is not found");
                    continue;
                }
                const std::string base = learner->save();
                Session session(shared, {other}, learner, writers++, 16);
                session.append_context(prompt);
                for (int step = 0; step < 10; ++step) {
                    const Text text = some_text(random);
                    session.record_step(1.0, text.size());
                    session.append(std::span(text).first(std::min<std::size_t>(text.size(), 6)), true);
                    (void)session.draft(16, curve, step % 2 ? Shape::tree : Shape::chain);
                    if (step == 5) session.append_context(prompt);
                }
                if (const std::string learned = learner->difference(base);
                    k == 1 && !learned.empty() && !learner->merge(learned))
                    fail("merge", "a difference is refused");
                session.retract();
            }
        });
    threads.clear();
    require_sound(*shared);
    if (shared->stats().nodes != 1) fail("retract", "nodes are left behind");
}

// Contexts with up to 60 followers, so that edge lists of all forms grow and shrink all the time.
Text wide_text(std::mt19937& random) {
    if (random() % 3 == 0) return some_text(random);
    Text text;
    for (std::size_t i = 0; i < 20 + random() % 60; ++i)
        text.push_back(static_cast<Token>(random() % (random() % 2 ? 60 : 4)));
    return text;
}

// Texts that are never removed are found at any time.
void look_up(const Index& index, const std::vector<Text>& lasting, std::mt19937& random) {
    const Text& text = lasting[random() % lasting.size()];
    const EpochGuard guard;
    const std::size_t first = random() % text.size();
    Cursor cursor;
    for (std::size_t i = first; i < text.size(); ++i) {
        index.advance(cursor, text[i]);
        if (cursor.len < std::min<std::size_t>(i + 1 - first, index.max_context()))
            fail("look up", "a context that is there is not found");
        std::uint32_t before = index.node(cursor.node).len;
        for (NodeId id = index.node(cursor.node).link; id != kRoot; id = index.node(id).link) {
            const std::uint32_t len = index.node(id).len;
            if (len >= before) fail("look up", "a link does not lead to a shorter string");
            before = len;
        }
        const Edges edges = index.edges(cursor.node);
        for (std::size_t i = 0; i < edges.size(); ++i) (void)index.votes(edges[i].to);
    }
}

void one_namespace(std::uint32_t seed, int rounds) {
    auto shared = std::make_shared<Index>(seed % 2 ? 64 : 6);
    auto learner = std::make_shared<Learner>();
    std::atomic<std::uint32_t> writers{2};
    std::atomic<int> working{0};
    std::mutex kept_mutex;
    Kept kept;
    std::vector<Text> lasting;
    std::mt19937 first_random(seed);
    for (int i = 0; i < 20; ++i) {
        lasting.push_back(wide_text(first_random));
        shared->add(lasting.back(), 0, writers++);
    }
    const auto take_one = [&](std::mt19937& random, std::size_t keep) -> std::pair<Text, std::size_t> {
        const std::scoped_lock lock(kept_mutex);
        if (kept.size() <= keep) return {};
        std::swap(kept[random() % kept.size()], kept.back());
        auto one = std::move(kept.back());
        kept.pop_back();
        return one;
    };
    const auto keep_one = [&](Text text, std::size_t uncounted) {
        const std::scoped_lock lock(kept_mutex);
        kept.emplace_back(std::move(text), uncounted);
    };
    const CostCurve curve(20, 1.0);
    const auto step = [&](Session& session, std::mt19937& random) {
        const Text text = wide_text(random);
        session.record_step(1.0, 1);
        session.append(std::span(text).first(std::min<std::size_t>(text.size(), 1 + random() % 4)), true);
        (void)session.draft(16, curve, random() % 2 ? Shape::tree : Shape::chain);
    };
    const auto write_sessions = [&](std::mt19937& random) {
        constexpr std::uint32_t kTail = 16;
        Session session(shared, {}, learner, writers++, kTail);
        session.append_context(wide_text(random));
        for (int i = 0; i < 12; ++i) {
            step(session, random);
            if (i == 6) session.append_context(wide_text(random));
        }
        if (random() % 3 == 0) {
            session.retract();
            return session.end();
        }
        if (random() % 2) session.end();
        for (const auto& [first, last] : session.output_runs()) {
            const std::size_t tail = first > kTail ? first - kTail : 0;
            keep_one(session.text(tail, last), first - tail);
        }
    };
    const auto write_bulk = [&](std::mt19937& random) {
        Text text = wide_text(random);
        const std::size_t uncounted = std::min<std::size_t>(random() % 4, text.size());
        shared->add(text, uncounted, writers++);
        keep_one(std::move(text), uncounted);
    };
    const auto remove = [&](std::mt19937& random) {
        const auto [text, uncounted] = take_one(random, 8);
        if (text.empty()) return;
        if (!shared->remove(text, uncounted)) fail("remove", "a text is not found");
    };
    // Long operations, which lock the mutex in batches while other threads write.
    const auto long_job = [&](std::mt19937& random) {
        switch (random() % 16) {
            case 0:
                shared->propagate_counts();
                break;
            case 1:
                (void)shared->ngrams(1 + random() % 3);
                break;
            case 2:
                shared->collect();
                (void)shared->session_bytes();
                break;
            case 3: {  // several at once, and longer than a piece
                const Text text(kMaxText + random() % 100, static_cast<Token>(random() % 3));
                shared->add(text, 0, writers++);
                if (!shared->remove(text, 0)) fail("remove", "a long text is not found");
                break;
            }
            case 4:
                require_sound(*shared);
                break;
            default:
                break;
        }
    };
    Threads threads;
    for (std::uint32_t k = 0; k < 8; ++k) {
        if (k < 6) ++working;
        threads.emplace_back([&, k] {
            std::mt19937 random(seed * 131 + k);
            if (k < 6) {
                for (int round = 0; round < rounds; ++round)
                    if (k < 3) {
                        write_sessions(random);
                    } else {
                        write_bulk(random);
                        if (k > 3) remove(random);
                        look_up(*shared, lasting, random);
                    }
                --working;
                return;
            }
            // Reads repeatedly until the writers have finished.
            while (working > 0) {
                Session reader(nullptr, {shared}, learner, writers++, 16);
                for (int i = 0; i < 30 && working > 0; ++i) {
                    step(reader, random);
                    look_up(*shared, lasting, random);
                    long_job(random);
                }
            }
        });
    }
    threads.clear();
    require_sound(*shared);
    Kept all = kept;
    for (const Text& text : lasting) all.emplace_back(text, 0);
    check_counts(*shared, all);
    require_sound(*shared);
    for (const auto& [text, uncounted] : all)
        if (!shared->remove(text, uncounted)) fail("remove", "a text is not found");
    const IndexStats stats = shared->stats();
    if (stats.nodes != 1 || stats.edges != 0 || stats.tokens != 0) fail("remove", "something is left behind");
    if (stats.bytes > Index(64).stats().bytes * 11 / 10) fail("remove", "memory is not returned");
}

// A text of one token is added and removed while thousands of texts begin with it, so that the test for its
// presence takes several batches, while others write. It must be found as often as it was added.
void many_followers(std::uint32_t seed, int rounds) {
    constexpr Token kFollowers = 5000;
    const Text first{1};
    Index index(8);
    for (Token t = 0; t < kFollowers; ++t) index.add(Text{1, 10 + t}, 0, 1);
    std::atomic<int> came{0}, found{0}, working{0};
    Threads threads;
    for (std::uint32_t k = 0; k < 4; ++k) {
        if (k < 2) ++working;
        threads.emplace_back([&, k] {
            std::mt19937 random(seed * 17 + k);
            if (k >= 2) {
                while (working > 0) found += index.remove(first, 0);
                return;
            }
            for (int round = 0; round < rounds; ++round) {
                index.add(first, 0, 1);
                ++came;
                for (int i = 0; i < 10; ++i) {
                    Text text{1, 10 + static_cast<Token>(random() % (2 * kFollowers))};
                    if (random() % 2) text.insert(text.end(), {1, static_cast<Token>(random() % 3)});
                    index.add(text, 0, 2);
                    if (!index.remove(text, 0))
                        fail("remove", "a text with a frequent beginning is not found");
                }
            }
            --working;
        });
    }
    threads.clear();
    while (index.remove(first, 0)) ++found;
    if (found != came) fail("remove", "a text is not found as often as it came");
    require_sound(index);
    for (Token t = 0; t < kFollowers; ++t)
        if (!index.remove(Text{1, 10 + t}, 0)) fail("remove", "a text that stayed is not found");
    if (index.stats().nodes != 1) fail("remove", "nodes are left behind");
}

}  // namespace

void stress_index(const StressArguments& arguments) {
    const auto [folder, seed, rounds] = arguments;
    alone(seed, rounds);
    together(seed, rounds / 10 + 1);
    for (std::uint32_t i = 0; i < 2; ++i) one_namespace(seed + i, rounds / 6 + 1);
    many_followers(seed, rounds / 2 + 1);
}

}  // namespace suffixsvc
