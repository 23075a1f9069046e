// Sealed segments: building, merging and checking random texts; then threads that search one segment while
// others forget, correct, merge and check; then segments that lose pages while they are read: truncated files
// (a fault, see base/files/map_guard.h), and holes that read as zeros without a fault.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "common.h"

namespace suffixsvc {

namespace {

void alone(const std::string& folder, std::mt19937& random) {
    std::vector<std::shared_ptr<Segment>> parts;
    std::vector<const Segment*> sources;
    Texts all;
    for (std::uint64_t k = 0; k < 1 + random() % 4; ++k) {
        const std::size_t n = 1 + random() % 5;
        std::mt19937 again = random;
        parts.push_back(build(folder + "/part.seg", random, 1 + 100 * k, n, 200, 3));
        add_outputs(all, again, 1 + 100 * k, n, 200);
        sources.push_back(parts.back().get());
        require_sound(*sources.back());
    }
    require_sound(*merge(folder + "/merged.seg", sources, 3));
    build(folder + "/union.seg", all, 3);
    if (read_file(folder + "/merged.seg") != read_file(folder + "/union.seg"))
        fail("merge", "not the bytes of the union");
}

void together(const std::string& folder, std::mt19937& random) {
    constexpr std::uint64_t kOutputs = 40;
    const std::shared_ptr<Segment> segment = build(folder + "/shared.seg", random, 1, kOutputs, 800, 4);
    Threads threads;
    for (std::uint32_t k = 0; k < 6; ++k)
        threads.emplace_back([&, seed = random() + k](std::stop_token stopped) {
            std::mt19937 mine(seed);
            SegmentView view;
            while (!stopped.stop_requested()) query_all(*segment, adversarial_text(mine, 70), 3, view);
        });
    threads.emplace_back([&](std::stop_token stopped) {
        const Segment* sources[] = {segment.get()};
        while (!stopped.stop_requested()) {
            require_sound(*segment);
            merge(folder + "/merged.seg", sources, 4);
        }
    });
    for (std::uint64_t lsn = 1; lsn <= kOutputs; ++lsn) {
        if (segment->forget({&lsn, 1}) != 1) fail("forget", "an output is not found");
        if (lsn % 3 == 0) segment->correct_hubs(lsn % 2 ? 1 : 100);
    }
    segment->correct_hubs(1000);
    stop(threads);
    SegmentView view;
    for (Token t = 0; t < 8; ++t) {
        segment->find({&t, 1}, kOrders, view);
        if (view.size != 0) fail("forget", "something is left");
    }
    if (segment->corrupt()) fail("check", "a sound segment was marked corrupt");
}

// Calls every operation of a segment until it is stopped, once at least. Results may be wrong.
void use_all(Segment& segment, const std::string& folder, std::uint32_t seed, std::stop_token stopped) {
    std::mt19937 random(seed);
    SegmentView view;
    do {
        query_all(segment, adversarial_text(random, 70), 1 + random() % kMaxWidth, view);
        const std::uint64_t lsn = 1 + random() % 60;
        switch (random() % 16) {
            case 0:
                segment.forget({&lsn, 1});
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
                try {
                    merge_segments(path, sources, 4, job);
                } catch (const FileFault&) {
                    break;  // no file was written
                }
                require_sound(*Segment::open(path));
                ::unlink(path.c_str());
                break;
            }
            default:
                break;
        }
    } while (!stopped.stop_requested());
}

void lose_pages(const std::string& folder, std::mt19937& random, int round) {
    const std::string path = folder + "/lost.seg";
    const std::shared_ptr<Segment> segment = build(path, random, 1, 60, 3000, 4);
    Threads threads;
    for (std::uint32_t k = 0; k < 4; ++k)
        threads.emplace_back([&, seed = static_cast<std::uint32_t>(random()) + k](std::stop_token stopped) {
            use_all(*segment, folder, seed, stopped);
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    File file("the file of pages to lose");
    if (!file.open(path, O_RDWR)) fail("open", path);
    constexpr std::uint64_t kPage = 4096;
    const std::uint64_t pages = (file.size() + kPage - 1) / kPage;
#ifdef FALLOC_FL_PUNCH_HOLE
    for (int hole = 0; hole < round % 4; ++hole) {
        (void)::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          static_cast<off_t>(random() % pages * kPage), kPage);
        std::this_thread::yield();
    }
#endif
    if (::ftruncate(file.fd(), static_cast<off_t>(random() % pages * kPage)) != 0) fail("truncate", path);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 10));
    stop(threads);
    if (segment->check().empty()) fail("lost pages", "a truncated segment passes its check");
    if (!segment->corrupt()) fail("lost pages", "a truncated segment is not marked corrupt");
    // A later mapping at the same address must not be affected; opening a file with a hole must fail.
    try {
        (void)Segment::open(path);
    } catch (const FileFault&) {
    }
}

}  // namespace

void stress_segments(const StressArguments& arguments) {
    std::mt19937 random(arguments.seed);
    for (int i = 0; i < arguments.rounds; ++i) alone(arguments.folder, random);
    for (int i = 0; i <= arguments.rounds / 20; ++i) together(arguments.folder, random);
    for (int i = 0; i <= arguments.rounds / 4; ++i) lose_pages(arguments.folder, random, i);
}

}  // namespace suffixsvc
