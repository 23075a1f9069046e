// Segments that lose pages while they are read, for the stress test of segments: truncated files (a fault,
// see base/map_guard.h), and holes that read as zeros without a fault.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "segment/segment.h"
#include "segment_inputs.h"

namespace suffixsvc {

// Calls every operation of a segment until `stop` is set. Results may be wrong.
inline void use_all(Segment& segment, const std::string& folder, std::uint32_t seed,
                    const std::atomic<bool>& stop) {
    constexpr int kAsked[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};
    std::mt19937 random(seed);
    SegmentView view;
    do {
        const std::vector<Token> context = adversarial_text(random, 70);
        segment.find(context, kAsked, view, random() % 2 ? &view : nullptr);
        SegmentEvidence evidence;
        segment.gather(view, 1 + random() % kMaxWidth, evidence);
        std::array<std::uint32_t, kMaxLevels> votes;
        for (std::size_t c = 0; c < evidence.size; ++c) segment.votes(view, evidence.token[c], votes);
        for (const SegmentLevel& level : view.all()) {
            const std::uint32_t at = segment.newest(level).position;
            (void)segment.token_at(at);
            (void)segment.age_at(at);
            segment.record_use(segment.newest_of(level, static_cast<Token>(random() % 50)));
        }
        const std::uint64_t lsn[] = {1 + random() % 60};
        switch (random() % 16) {
            case 0:
                segment.forget(lsn);
                break;
            case 1:
                segment.correct_hubs(2);
                break;
            case 2:
                (void)segment.take_recently_used();
                (void)segment.occurrences();
                break;
            case 3:
                (void)segment.check();
                break;
            case 4: {
                SegmentJob job;
                const Segment* sources[] = {&segment};
                const std::string path = folder + "/lost-merge" + std::to_string(seed) + ".seg";
                if (!merge_segments(path, sources, {4}, job)) {
                    // The result is complete, or no file was written.
                    FileFault fault;
                    const auto merged = Segment::open(path, fault);
                    if (!merged) fail("merge", fault.message);
                    if (const std::string what = merged->check(); !what.empty()) fail("merge", what);
                    ::unlink(path.c_str());
                }
                break;
            }
            default:
                break;
        }
    } while (!stop.load());
}

inline void lose_pages(const std::string& folder, std::uint32_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed * 13 + static_cast<std::uint32_t>(round));
        const std::string path = folder + "/lost.seg";
        build(path, adversarial_texts(random, 1, 60, 3000), 4);
        FileFault fault;
        const std::unique_ptr<Segment> segment = Segment::open(path, fault);
        if (!segment) fail("open", fault.message);
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (std::uint32_t k = 0; k < 4; ++k)
            threads.emplace_back([&, k] { use_all(*segment, folder, seed * 31 + k, stop); });
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
        struct stat info;
        const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (fd < 0 || ::fstat(fd, &info) != 0) fail("open", path);
        constexpr std::uint64_t kPage = 4096;
        const std::uint64_t pages = (static_cast<std::uint64_t>(info.st_size) + kPage - 1) / kPage;
#ifdef FALLOC_FL_PUNCH_HOLE
        for (int hole = 0; hole < round % 4; ++hole) {
            (void)::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(random() % pages * kPage), kPage);
            std::this_thread::yield();
        }
#endif
        const std::uint64_t left = random() % pages * kPage;
        if (::ftruncate(fd, static_cast<off_t>(left)) != 0) fail("truncate", path);
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
        stop.store(true);
        for (auto& t : threads) t.join();
        if (segment->check().empty()) fail("lost pages", "a truncated segment passes its check");
        if (!segment->corrupt()) fail("lost pages", "a truncated segment is not marked corrupt");
        // A later mapping at the same address must not be affected; opening a file with a hole must fail.
        (void)Segment::open(path, fault);
        ::close(fd);
    }
}

}  // namespace suffixsvc
