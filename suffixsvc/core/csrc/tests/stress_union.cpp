// Stress test of drafting from sealed segments and the hot index for the sanitizers: sessions step and draft
// while other threads replace the lists of segments, forget outputs, correct hubs, mark segments corrupt, and
// take the recently used texts.
//
//   union_stress DIR [seed] [rounds]
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "draft/session.h"
#include "segment/segment.h"
#include "segment_inputs.h"

using namespace suffixsvc;

namespace {

constexpr std::uint64_t kOutputs = 12;  // outputs per segment

std::shared_ptr<Segment> open(const std::string& path) {
    FileFault fault;
    std::shared_ptr<Segment> segment = Segment::open(path, fault);
    if (!segment) fail("open", fault.message);
    return segment;
}

// Segments of different outputs; their files are removed, their maps stay.
std::vector<std::shared_ptr<Segment>> make_segments(const std::string& folder, std::mt19937& random) {
    std::vector<std::shared_ptr<Segment>> segments;
    for (std::uint64_t k = 0; k < 6; ++k) {
        const std::string path = folder + "/union.seg";
        build(path, adversarial_texts(random, 1 + k * kOutputs, kOutputs, 500), k % 2 ? 4 : 0);
        segments.push_back(open(path));
        std::remove(path.c_str());
    }
    return segments;
}

void read(const std::vector<std::shared_ptr<Index>>& indexes, const std::shared_ptr<Learner>& learner,
          std::atomic<std::uint32_t>& writers, std::mt19937& random, const std::atomic<bool>& stop) {
    CostCurve curve;
    for (int w = 0; w < 20; ++w) curve.push_back(1.0 + 0.001 * w);
    while (!stop.load()) {
        Session session(indexes[random() % 2], indexes, learner, writers++, 16);
        session.append_context(adversarial_text(random, 80));
        for (int step = 0; step < 10; ++step) {
            const std::vector<Token> text = adversarial_text(random, 6);
            session.append(text, step % 4 != 3);
            const auto draft = session.draft(16, curve, step % 2 ? Shape::tree : Shape::chain);
            for (std::size_t i = 0; i < draft.size(); ++i)
                if (draft[i].token < 0 || draft[i].parent >= static_cast<std::int32_t>(i))
                    fail("draft", "not a tree of tokens");
            (void)session.inspect(3);
        }
        if (random() % 2) session.retract();
    }
}

void together(const std::string& folder, std::uint32_t seed, int rounds) {
    const std::vector<std::shared_ptr<Index>> indexes{std::make_shared<Index>(64),
                                                      std::make_shared<Index>(64)};
    const auto learner = std::make_shared<Learner>();
    std::atomic<std::uint32_t> writers{2};
    std::mutex mutex;  // guards the list `segments`, not the segments
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<Segment>> segments = make_segments(folder, random);
    const auto current = [&] {
        const std::scoped_lock lock(mutex);
        return segments;
    };
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (std::uint32_t k = 0; k < 5; ++k)
        threads.emplace_back([&, k] {
            std::mt19937 mine(seed * 31 + k);
            read(indexes, learner, writers, mine, stop);
        });
    threads.emplace_back([&] {  // forgets outputs
        std::mt19937 mine(seed * 37);
        while (!stop.load()) {
            const auto now = current();
            const std::uint64_t lsn = 1 + mine() % (now.size() * kOutputs);
            for (const auto& segment : now) segment->forget(std::span(&lsn, 1));
            if (mine() % 3 == 0) now[mine() % now.size()]->correct_hubs(mine() % 4);
            std::this_thread::yield();
        }
    });
    threads.emplace_back([&] {  // takes the recently used texts
        while (!stop.load()) {
            for (const auto& index : indexes)
                for (const std::uint32_t writer : index->recently_used.take())
                    if (writer >= writers.load()) fail("take_recently_used", "an unknown writer");
            for (const auto& segment : current())
                for (const std::uint64_t lsn : segment->take_recently_used())
                    if (lsn == 0 || lsn > 6 * kOutputs) fail("take_recently_used", "an unknown output");
            std::this_thread::yield();
        }
    });
    for (int round = 0; round < rounds; ++round) {
        SegmentList::Segments some;
        for (const auto& segment : current())
            if (random() % 2) some.push_back(segment);
        indexes[random() % 2]->segments.set(std::move(some));
        if (random() % 8 == 0) current()[random() % 6]->mark_corrupt();
        if (random() % 4 == 0) {
            auto next = make_segments(folder, random);
            const std::scoped_lock lock(mutex);
            segments.swap(next);
        }
        std::this_thread::yield();
    }
    stop.store(true);
    for (auto& t : threads) t.join();
    for (const auto& index : indexes)
        if (const std::string what = index->check(); !what.empty()) fail("check", what);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) fail("usage", "union_stress DIR [seed] [rounds]");
    const auto seed = static_cast<std::uint32_t>(argc > 2 ? std::atol(argv[2]) : 1);
    const int rounds = argc > 3 ? std::atoi(argv[3]) : 300;
    together(argv[1], seed, rounds);
    std::printf("union_stress: seed %u, %d lists, 8 threads: clean\n", seed, rounds);
    return 0;
}
