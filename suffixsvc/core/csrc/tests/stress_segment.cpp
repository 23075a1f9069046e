// Stress test of sealed segments for the sanitizers: building, merging and checking with random texts; then
// eight threads that search one segment while others forget, correct, merge and check; then segments whose
// files are truncated while they are read.
//
//   segment_stress DIR [seed] [rounds]
#include <atomic>
#include <thread>

#include "lost_pages.h"
#include "segment/segment.h"
#include "segment_inputs.h"

using namespace suffixsvc;

namespace {

constexpr int kOrders[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};

std::unique_ptr<Segment> open(const std::string& path) {
    FileFault fault;
    std::unique_ptr<Segment> segment = Segment::open(path, fault);
    if (!segment) fail("open", fault.message);
    return segment;
}

void check(const Segment& segment) {
    if (const std::string what = segment.check(); !what.empty()) fail("check", what);
}

void alone(const std::string& folder, std::uint32_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed + static_cast<std::uint32_t>(round));
        std::vector<std::unique_ptr<Segment>> parts;
        std::vector<const Segment*> sources;
        Texts all;
        for (std::uint64_t k = 0; k < 1 + random() % 4; ++k) {
            const Texts texts = adversarial_texts(random, 1 + 100 * k, 1 + random() % 5, 200);
            build(folder + "/part.seg", texts, 3);
            parts.push_back(open(folder + "/part.seg"));
            sources.push_back(parts.back().get());
            check(*sources.back());
            all.tokens.insert(all.tokens.end(), texts.tokens.begin(), texts.tokens.end());
            all.lengths.insert(all.lengths.end(), texts.lengths.begin(), texts.lengths.end());
            all.contexts.insert(all.contexts.end(), texts.contexts.begin(), texts.contexts.end());
            all.lsns.insert(all.lsns.end(), texts.lsns.begin(), texts.lsns.end());
        }
        SegmentJob job;
        if (const FileFault fault = merge_segments(folder + "/merged.seg", sources, {3}, job))
            fail("merge", fault.message);
        build(folder + "/union.seg", all, 3);
        if (read_file(folder + "/merged.seg") != read_file(folder + "/union.seg"))
            fail("merge", "not the bytes of the union, round " + std::to_string(round));
        check(*open(folder + "/merged.seg"));
    }
}

void together(const std::string& folder, std::uint32_t seed, int rounds) {
    for (int round = 0; round < rounds; ++round) {
        std::mt19937 random(seed * 7 + static_cast<std::uint32_t>(round));
        constexpr std::uint64_t kOutputs = 40;
        build(folder + "/shared.seg", adversarial_texts(random, 1, kOutputs, 800), 4);
        const std::unique_ptr<Segment> segment = open(folder + "/shared.seg");
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (std::uint32_t k = 0; k < 6; ++k)
            threads.emplace_back([&, k] {
                std::mt19937 mine(seed * 31 + k);
                while (!stop.load()) {
                    const std::vector<Token> context = adversarial_text(mine, 70);
                    SegmentView view;
                    segment->find(context, kOrders, view);
                    SegmentEvidence evidence;
                    segment->gather(view, 3, evidence);
                    std::array<std::uint32_t, kMaxLevels> votes;
                    for (std::size_t c = 0; c < evidence.size; ++c)
                        segment->votes(view, evidence.token[c], votes);
                    if (view.size > 0) (void)segment->newest(view.levels[0]);
                }
            });
        threads.emplace_back([&] {
            SegmentJob job;
            const Segment* sources[] = {segment.get()};
            while (!stop.load()) {
                check(*segment);
                if (const FileFault fault = merge_segments(folder + "/merged.seg", sources, {4}, job))
                    fail("merge", fault.message);
            }
        });
        for (std::uint64_t lsn = 1; lsn <= kOutputs; ++lsn) {
            const std::uint64_t one[] = {lsn};
            if (segment->forget(one) != 1) fail("forget", "an output is not found");
            if (lsn % 3 == 0) segment->correct_hubs(lsn % 2 ? 1 : 100);
        }
        segment->correct_hubs(1000);
        stop.store(true);
        for (auto& t : threads) t.join();
        SegmentView view;
        for (Token t = 0; t < 8; ++t) {
            segment->find(std::span(&t, 1), kOrders, view);
            if (view.size != 0) fail("forget", "something is left");
        }
        if (segment->corrupt()) fail("check", "a sound segment was marked corrupt");
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) fail("usage", "segment_stress DIR [seed] [rounds]");
    const auto seed = static_cast<std::uint32_t>(argc > 2 ? std::atol(argv[2]) : 1);
    const int rounds = argc > 3 ? std::atoi(argv[3]) : 200;
    alone(argv[1], seed, rounds);
    together(argv[1], seed, rounds / 20 + 1);
    lose_pages(argv[1], seed, rounds / 4 + 1);
    std::printf("segment_stress: seed %u, %d rounds alone, %d rounds with 8 threads: clean\n", seed, rounds,
                rounds / 20 + 1);
    return 0;
}
