// What a sealed segment costs: building, merging, opening, bytes a token, and a draft. One line of JSON a
// size.
//
//   bench_segment DIR TOKENS [TOKENS ...]
//
// Texts: outputs of 500 tokens put together from phrases, some of which are much more frequent than others
// (the number of different ones grows with the size), a twentieth of their tokens replaced. A draft: the
// contexts of 16 positions, each a token longer than the one before, and for each what the drafting asks of
// an index: all rungs, the three strongest followers of each, the votes of every candidate in every rung, the
// newest follower of the longest.
#include <sys/stat.h>

#include <chrono>
#include <cmath>

#include "segment.h"
#include "segment_inputs.h"

using namespace suffixsvc;

namespace {

constexpr int kOrders[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};
constexpr std::size_t kChunk = 10'000'000;  // tokens sealed at once; larger sizes are merged from such
constexpr std::size_t kOutput = 500;
constexpr int kVocabulary = 50'000;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class Writer {
  public:
    Writer(std::size_t tokens, std::uint32_t seed) : random_(seed), phrases_(tokens / 200 + 100) {
        std::mt19937 fixed(77);
        for (auto& phrase : phrases_) {
            phrase.resize(4 + fixed() % 40);
            for (Token& t : phrase) t = skewed(fixed, kVocabulary);
        }
    }
    std::vector<Token> output() {
        std::vector<Token> text;
        while (text.size() < kOutput)
            for (Token t :
                 phrases_[static_cast<std::size_t>(skewed(random_, static_cast<int>(phrases_.size())))])
                text.push_back(random_() % 20 ? t : skewed(random_, kVocabulary));
        text.resize(kOutput);
        return text;
    }

  private:
    // Log-uniform: value k about as often as 1 / k, as words are (Zipf 1949).
    static Token skewed(std::mt19937& random, int most) {
        const double u = static_cast<double>(random()) / 4294967296.0;
        return std::min(most - 1, static_cast<int>(std::exp(u * std::log(static_cast<double>(most))) - 1.0));
    }
    std::mt19937 random_;
    std::vector<std::vector<Token>> phrases_;
};

struct Percentiles {
    double p50, p90, p99;
};

Percentiles percentiles(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    const auto at = [&](double q) {
        return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
    };
    return {at(0.5), at(0.9), at(0.99)};
}

// Microseconds of drafts of 16 along texts that the segment does not hold, and rungs a context.
Percentiles time_drafts(const Segment& segment, Writer& writer, double& rungs) {
    std::vector<double> drafts;
    std::uint64_t contexts = 0, found = 0, candidates = 0, votes = 0;
    for (int text = 0; text < 60; ++text) {
        const std::vector<Token> output = writer.output();
        for (std::size_t at = 64; at + 16 < output.size(); at += 20) {
            const auto start = Clock::now();
            for (std::size_t k = 0; k < 16; ++k) {
                SegmentView view;
                segment.find(std::span(output).first(at + k), kOrders, view);
                SegmentEvidence evidence;
                segment.gather(view, 3, evidence);
                candidates += evidence.size;
                if (view.size > 0) votes += static_cast<std::uint64_t>(segment.newest(view.rungs[0]).token);
                found += view.size;
                ++contexts;
            }
            drafts.push_back(seconds_since(start) * 1e6);
        }
    }
    if (votes + candidates == 0) fail("draft", "nothing was found");
    rungs = static_cast<double>(found) / static_cast<double>(contexts);
    return percentiles(drafts);
}

void measure(const std::string& folder, std::size_t tokens) {
    Writer writer(tokens, 1);
    SegmentJob job;
    std::vector<std::string> parts;
    double build_s = 0, merge_s = 0;
    std::uint64_t lsn = 0;
    for (std::size_t left = tokens; left > 0;) {
        const std::size_t n = std::min(left, kChunk) / kOutput;
        Texts texts;
        for (std::size_t i = 0; i < n; ++i) texts.add(writer.output(), 0, ++lsn);
        parts.push_back(folder + "/part" + std::to_string(parts.size()) + ".seg");
        const auto start = Clock::now();
        build(parts.back(), texts, 0);
        build_s += seconds_since(start);
        left -= std::min(left, kChunk);
    }
    const std::string path = folder + "/whole.seg";
    SegmentFault fault;
    if (parts.size() > 1) {
        std::vector<std::unique_ptr<Segment>> open;
        std::vector<const Segment*> sources;
        for (const std::string& part : parts) {
            open.push_back(Segment::open(part, fault));
            sources.push_back(open.back().get());
        }
        const auto start = Clock::now();
        if (fault = merge_segments(path, sources, {}, job); fault) fail("merge", fault.message);
        merge_s = seconds_since(start);
    } else {
        std::rename(parts[0].c_str(), path.c_str());
    }
    for (const std::string& part : parts) std::remove(part.c_str());
    const auto start = Clock::now();
    const std::unique_ptr<Segment> segment = Segment::open(path, fault);
    const double open_s = seconds_since(start);
    if (!segment) fail("open", fault.message);
    double rungs = 0;
    const Percentiles cold = time_drafts(*segment, writer, rungs);
    const Percentiles warm = time_drafts(*segment, writer, rungs);
    std::vector<double> forgets, settles;
    for (std::uint64_t k = 1; k <= 50; ++k) {
        const std::uint64_t one[] = {k};
        const auto before = Clock::now();
        segment->forget(one);
        forgets.push_back(seconds_since(before) * 1e6);
        segment->settle(1);
        settles.push_back(seconds_since(before) * 1e6);
    }
    const Percentiles forgotten = time_drafts(*segment, writer, rungs);
    const SegmentStats stats = segment->stats();
    const auto million = static_cast<double>(tokens) / 1e6;
    std::printf(
        "{\"tokens\": %zu, \"build_us_per_token\": %.3f, \"merge_us_per_token\": %.3f, \"bytes_per_token\": "
        "%.2f, "
        "\"open_ms\": %.2f, \"heap_bytes\": %llu, \"hubs\": %llu, \"hub_min\": %llu, \"rungs_per_context\": "
        "%.2f, "
        "\"first_touch_draft_us_p50\": %.1f, \"draft_us_p50\": %.2f, \"draft_us_p90\": %.2f, "
        "\"draft_us_p99\": %.2f, "
        "\"draft_us_p50_after_forgetting\": %.2f, \"forget_us_p50\": %.2f, \"settle_us_p50\": %.1f}\n",
        tokens, build_s / million, merge_s / million,
        static_cast<double>(stats.file_bytes) / static_cast<double>(tokens), open_s * 1e3,
        static_cast<unsigned long long>(stats.resident_bytes), static_cast<unsigned long long>(stats.hubs),
        static_cast<unsigned long long>(stats.hub_min), rungs, cold.p50, warm.p50, warm.p90, warm.p99,
        forgotten.p50, percentiles(forgets).p50, percentiles(settles).p50);
    std::fflush(stdout);
    std::remove(path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) fail("usage", "bench_segment DIR TOKENS [TOKENS ...]");
    for (int i = 2; i < argc; ++i) measure(argv[1], static_cast<std::size_t>(std::atoll(argv[i])));
    return 0;
}
