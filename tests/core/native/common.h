// What the stress tests and the fuzzer share: texts chosen to hurt, segments and their queries, files.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "draft/session/session.h"
#include "index/index.h"
#include "segment/build/segment_builder.h"
#include "segment/query/segment.h"

namespace suffixsvc {

using Text = std::vector<Token>;
using Threads = std::vector<std::jthread>;  // clear() asks all of them to stop, and joins them

[[noreturn]] inline void fail(const char* where, const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", where, what.c_str());
    std::exit(1);
}

inline void require(bool holds, const char* what) {
    if (!holds) fail("require", what);
}

// An index or a segment must pass its check.
template <typename Checked>
void require_sound(const Checked& checked) {
    if (const std::string what = checked.check(); !what.empty()) fail("check", what);
}

inline void stop(Threads& threads) {
    for (std::jthread& thread : threads) thread.request_stop();
    threads.clear();
}

// A curve for `width` drafted tokens, of which each costs `slope` plain steps.
inline CostCurve linear_cost(int width, double slope) {
    CostCurve curve;
    for (int w = 0; w <= width; ++w) curve.push_back(1.0 + slope * w);
    return curve;
}

// Runs of one token, periods, tiny and huge alphabets, the limits of int32.
inline Text adversarial_text(std::mt19937& random, std::size_t max_length) {
    const std::size_t n = 1 + random() % max_length;
    const int kind = static_cast<int>(random() % 6);
    const std::size_t period = 1 + random() % 7;
    const auto token = [&](std::size_t i) -> std::size_t {
        switch (kind) {
            case 0:
                return 7;
            case 1:
                return i % period;
            case 2:
                return random() % 2;
            case 3:
                return random() % 100000;
            case 4:
                return random() % 4 ? i % 50 : random() % 50;
            default:
                return random() % 2 ? 0 : 2147483647;
        }
    };
    Text text;
    for (std::size_t i = 0; i < n; ++i) text.push_back(static_cast<Token>(token(i)));
    return text;
}

// Input of a segment.
struct Texts {
    Text tokens;
    std::vector<std::uint64_t> lengths, lsns;
    std::vector<std::uint32_t> contexts;

    void add(const Text& text, std::uint32_t context, std::uint64_t lsn) {
        tokens.insert(tokens.end(), text.begin(), text.end());
        lengths.push_back(text.size());
        contexts.push_back(context);
        lsns.push_back(lsn);
    }
};

// Adds outputs first .. first + n - 1, some with two texts, some texts in two outputs.
inline void add_outputs(Texts& texts, std::mt19937& random, std::uint64_t first, std::size_t n,
                        std::size_t max_length) {
    Text before;
    for (std::uint64_t lsn = first; lsn < first + n; ++lsn) {
        const Text text =
            random() % 5 == 0 && !before.empty() ? before : adversarial_text(random, max_length);
        texts.add(text, static_cast<std::uint32_t>(random() % 3 ? 0 : random() % text.size()), lsn);
        if (random() % 4 == 0) texts.add(adversarial_text(random, 20), 0, lsn);
        before = text;
    }
}

inline std::shared_ptr<Segment> build(const std::string& path, const Texts& texts, std::uint32_t hub_min) {
    SegmentJob job;
    build_segment(path, {texts.tokens, texts.lengths, texts.contexts, texts.lsns}, hub_min, job);
    return Segment::open(path);
}

inline std::shared_ptr<Segment> build(const std::string& path, std::mt19937& random, std::uint64_t first,
                                      std::size_t n, std::size_t max_length, std::uint32_t hub_min) {
    Texts texts;
    add_outputs(texts, random, first, n, max_length);
    return build(path, texts, hub_min);
}

// Merges segments and opens the result.
inline std::shared_ptr<Segment> merge(const std::string& path, std::span<const Segment* const> sources,
                                      std::uint32_t hub_min) {
    SegmentJob job;
    merge_segments(path, sources, hub_min, job);
    return Segment::open(path);
}

// Calls all queries for a context; what every result must satisfy, even that of a damaged file, is checked.
inline void query_all(const Segment& segment, const Text& context, std::size_t width, SegmentView& view) {
    for (std::size_t n = context.size() - context.size() % 3; n <= context.size(); ++n)
        segment.find(std::span(context).first(n), kOrders, view, n % 2 ? &view : nullptr);
    SegmentEvidence evidence;
    segment.gather(view, width, evidence);
    std::array<std::uint32_t, kMaxLevels> votes;
    for (std::size_t c = 0; c < evidence.size; ++c) {
        if (evidence.token[c] < 0) fail("gather", "a candidate is not a token id");
        segment.votes(view, evidence.token[c], votes);
    }
    std::uint32_t longer = kSegmentContext + 1;
    for (const SegmentLevel& level : view.all()) {
        if (level.len == 0 || level.len >= longer) fail("find", "levels do not get shorter");
        if (level.begin >= level.end || level.end > segment.counts().entries)
            fail("find", "a level is not an interval");
        longer = level.len;
        (void)segment.total(level);
        const std::uint32_t at = segment.newest_of(level, evidence.size > 0 ? evidence.token[0] : 3);
        if (at == 0) continue;
        segment.record_use(at);
        (void)segment.age_at(at);
        (void)segment.token_at(at + 1);
    }
}

// A number that a reader may not expect in the place of `old`.
inline std::uint32_t nasty(std::mt19937& random, std::uint32_t old) {
    const std::uint32_t numbers[] = {0,
                                     0xFFFFFFFFu,
                                     old + 1,
                                     old - 1,
                                     old ^ (1u << random() % 32),
                                     0x7FFFFFFFu,
                                     static_cast<std::uint32_t>(random() % 40),
                                     static_cast<std::uint32_t>(random())};
    return numbers[random() % std::size(numbers)];
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<long>(bytes.size()));
}

// The stress tests. Each fails with a message, or returns.
struct StressArguments {
    std::string folder;  // for files
    std::uint32_t seed;
    int rounds;
};
void stress_index(const StressArguments& arguments);
void stress_steps(const StressArguments& arguments);
void stress_segments(const StressArguments& arguments);
void stress_union(const StressArguments& arguments);
void stress_ngrams(const StressArguments& arguments);
void stress_words(const StressArguments& arguments);
void stress_publishing(const StressArguments& arguments);
void stress_driver(const StressArguments& arguments);

}  // namespace suffixsvc
