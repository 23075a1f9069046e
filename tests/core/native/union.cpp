// Drafting from sealed segments and the hot index: sessions step and draft while other threads replace the
// lists of segments, forget outputs, correct hubs, mark segments corrupt, and take the recently used texts.
#include "common.h"

namespace suffixsvc {

namespace {

constexpr std::uint64_t kOutputs = 12;  // outputs per segment
constexpr std::uint64_t kSegments = 6;

// Segments of different outputs; their files are removed, their maps stay.
std::vector<std::shared_ptr<Segment>> make_segments(const std::string& folder, std::mt19937& random) {
    std::vector<std::shared_ptr<Segment>> segments;
    const std::string path = folder + "/union.seg";
    for (std::uint64_t k = 0; k < kSegments; ++k)
        segments.push_back(build(path, random, 1 + k * kOutputs, kOutputs, 500, k % 2 ? 4 : 0));
    std::remove(path.c_str());
    return segments;
}

}  // namespace

void stress_union(const StressArguments& arguments) {
    const std::vector<std::shared_ptr<Index>> indexes{std::make_shared<Index>(), std::make_shared<Index>()};
    const auto learner = std::make_shared<Learner>();
    std::atomic<std::uint32_t> writers{2};
    std::mutex mutex;  // guards the list `segments`, not the segments
    std::mt19937 random(arguments.seed);
    std::vector<std::shared_ptr<Segment>> segments = make_segments(arguments.folder, random);
    const auto current = [&] {
        const std::scoped_lock lock(mutex);
        return segments;
    };
    const CostCurve curve = linear_cost(19, 0.001);
    Threads threads;
    for (std::uint32_t k = 0; k < 5; ++k)
        threads.emplace_back([&, seed = random() + k](std::stop_token stopped) {
            std::mt19937 mine(seed);
            while (!stopped.stop_requested()) {
                Session session(indexes[mine() % 2], indexes, learner, writers++, 16);
                session.append_context(adversarial_text(mine, 80));
                for (int step = 0; step < 10; ++step) {
                    session.append(adversarial_text(mine, 6), step % 4 != 3);
                    const auto draft = session.draft(16, curve, step % 2 ? Shape::tree : Shape::chain);
                    for (std::size_t i = 0; i < draft.size(); ++i)
                        if (draft[i].token < 0 || draft[i].parent >= static_cast<std::int32_t>(i))
                            fail("draft", "not a tree of tokens");
                    (void)session.inspect(3);
                }
                if (mine() % 2) session.retract();
            }
        });
    threads.emplace_back([&, seed = random()](std::stop_token stopped) {  // forgets outputs
        std::mt19937 mine(seed);
        while (!stopped.stop_requested()) {
            const auto now = current();
            const std::uint64_t lsn = 1 + mine() % (kSegments * kOutputs);
            for (const auto& segment : now) segment->forget({&lsn, 1});
            if (mine() % 3 == 0) now[mine() % now.size()]->correct_hubs(mine() % 4);
            std::this_thread::yield();
        }
    });
    threads.emplace_back([&](std::stop_token stopped) {  // takes the recently used texts
        while (!stopped.stop_requested()) {
            for (const auto& index : indexes)
                for (const std::uint32_t writer : index->recently_used.take())
                    if (writer >= writers.load()) fail("take_recently_used", "an unknown writer");
            for (const auto& segment : current())
                for (const std::uint64_t lsn : segment->take_recently_used())
                    if (lsn == 0 || lsn > kSegments * kOutputs)
                        fail("take_recently_used", "an unknown output");
            std::this_thread::yield();
        }
    });
    for (int round = 0; round < arguments.rounds; ++round) {
        SegmentList::Segments some;
        for (const auto& segment : current())
            if (random() % 2) some.push_back(segment);
        indexes[random() % 2]->segments.set(std::move(some));
        if (random() % 8 == 0) current()[random() % kSegments]->mark_corrupt();
        if (random() % 4 == 0) {
            auto next = make_segments(arguments.folder, random);
            const std::scoped_lock lock(mutex);
            segments.swap(next);
        }
        std::this_thread::yield();
    }
    stop(threads);
    for (const auto& index : indexes) require_sound(*index);
}

}  // namespace suffixsvc
