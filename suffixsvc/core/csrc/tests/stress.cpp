// What the sanitizers run: the core without Python, first alone under random operations with check()
// after each, then shared by threads that step, write, retract and read at once.
//
//   core_stress [seed] [rounds]
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "index.h"
#include "session.h"

using namespace suffixsvc;

namespace {

using Text = std::vector<Token>;

[[noreturn]] void fail(const char* where, const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", where, what.c_str());
    std::exit(1);
}

Text hurtful_text(std::mt19937& random) {
    const int kind = static_cast<int>(random() % 5);
    const std::size_t n = 1 + random() % 80;
    Text text;
    Text period;
    for (std::size_t i = 0; i < 1 + random() % 5; ++i) period.push_back(static_cast<Token>(random() % 3));
    for (std::size_t i = 0; i < n; ++i) switch (kind) {
            case 0:
                text.push_back(7);
                break;
            case 1:
                text.push_back(period[i % period.size()]);
                break;
            case 2:
                text.push_back(static_cast<Token>(random() % 2));
                break;
            case 3:
                text.push_back(static_cast<Token>(random() % 100000));
                break;
            default:
                text.push_back(random() % 2 ? 0 : 2147483647);
                break;
        }
    return text;
}

void check_counts(Index& index, const std::vector<std::pair<Text, std::size_t>>& texts) {
    index.settle();
    std::map<Text, std::uint64_t> truth;
    for (const auto& [text, uncounted] : texts)
        for (std::size_t end = uncounted; end < text.size(); ++end)
            for (std::size_t n = 1; n <= std::min<std::size_t>(4, end + 1); ++n)
                ++truth[Text(text.begin() + static_cast<std::ptrdiff_t>(end + 1 - n),
                             text.begin() + static_cast<std::ptrdiff_t>(end + 1))];
    for (const auto& [gram, n] : truth)
        if (gram.size() <= index.max_context() && index.count(gram) != n)
            fail("counts", "a count differs from the oracle's");
}

void alone(std::uint32_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed + static_cast<std::uint32_t>(round));
        Index index(1u << (random() % 8));
        std::vector<std::pair<Text, std::size_t>> texts;
        for (int op = 0; op < 30; ++op) {
            if (!texts.empty() && random() % 3 == 0) {
                const std::size_t i = random() % texts.size();
                if (!index.remove(texts[i].first, texts[i].second)) fail("remove", "a text is not found");
                texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(i));
            } else {
                Text text = hurtful_text(random);
                const std::size_t uncounted = random() % 3 == 0 ? std::min<std::size_t>(2, text.size()) : 0;
                index.add(text, uncounted, static_cast<std::uint32_t>(random() % 4));
                texts.emplace_back(std::move(text), uncounted);
            }
            if (const std::string what = index.check(); !what.empty())
                fail("check", what + ", round " + std::to_string(round));
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
    std::atomic<std::uint32_t> writers{2};
    std::vector<std::thread> threads;
    for (std::uint32_t k = 0; k < 8; ++k)
        threads.emplace_back([&, k] {
            std::mt19937 random(seed * 31 + k);
            for (int round = 0; round < rounds; ++round) {
                const Text prompt = hurtful_text(random);
                if (k == 0) {  // bulk writer and remover
                    {
                        std::unique_lock write(other->mutex);
                        other->add(prompt, 0, writers++);
                    }
                    {
                        std::unique_lock write(other->mutex);
                        if (!other->check().empty()) fail("check", "the shared index is broken");
                    }
                    std::unique_lock write(other->mutex);
                    if (!other->remove(prompt, 0)) fail("remove", "a text is not found");
                    continue;
                }
                Session session(shared, {other}, learner, writers++, 16);
                session.append_context(prompt);
                CostCurve curve;
                for (int w = 0; w < 20; ++w) curve.push_back(1.0 + 0.02 * w);
                for (int step = 0; step < 10; ++step) {
                    const Text text = hurtful_text(random);
                    session.account(1.0, text.size());
                    session.append(std::span(text).first(std::min<std::size_t>(text.size(), 6)), true);
                    (void)session.draft(16, curve, step % 2 ? Shape::tree : Shape::chain);
                    if (step == 5) session.append_context(prompt);
                }
                (void)learner->save();
                session.retract();
            }
        });
    for (auto& t : threads) t.join();
    if (const std::string what = shared->check(); !what.empty()) fail("check", what);
    if (shared->stats().nodes != 1) fail("retract", "nodes are left behind");
}

}  // namespace

int main(int argc, char** argv) {
    const auto seed = static_cast<std::uint32_t>(argc > 1 ? std::atol(argv[1]) : 1);
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 300;
    alone(seed, rounds);
    together(seed, rounds / 10 + 1);
    std::printf("core_stress: seed %u, %d rounds alone, %d rounds with 8 threads: clean\n", seed, rounds,
                rounds / 10 + 1);
    return 0;
}
