// The runs of tokens that occur in texts of at least k principals: what a namespace publishes.
//
// A string is *shared* if it occurs in texts of at least k distinct principals. Parts of a shared string are
// shared, so the shared strings are described by the maximal ones: those that are not part of a longer one.
// Only these are returned, each once. Two of them that overlap are never joined: no k principals need have
// written what they spell together.
//
//   texts    a b c d x     (alice)       k = 2: "a b c d" and "c d x" are maximal;
//            a b c d       (bob)         "a b c d x" is only alice's, and is not returned
//            c d x         (carol)
//
// All texts are sorted as one suffix array, each ended by a separator that equals nothing. Every smallest
// window of adjacent suffixes with k distinct principals shares the minimum of its LCPs; the longest shared
// string that begins at a position is the largest of these minima that reaches its suffix.
//
// Time: O(n log l) for n tokens in texts of at most l. Memory: at most 32 bytes a token besides the input,
// and the result. Threads: any; the job may be cancelled and observed from other threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sync/job.h"
#include "segment/format/segment_format.h"

namespace suffixsvc {

// Maximum tokens of the texts together, and of the result.
inline constexpr std::size_t kMaxSharedTokens = std::size_t{1} << 22;

// Concatenated texts. `lengths` and `principals` have one element per text.
struct PrincipalTexts {
    std::span<const Token> tokens;
    std::span<const std::uint64_t> lengths;     // of each text; may be 0
    std::span<const std::uint32_t> principals;  // a number of its principal, below the number of texts
};

struct SharedRuns {
    std::vector<Token> tokens;           // of all runs, concatenated
    std::vector<std::uint64_t> lengths;  // of each run, in lexicographic order of their tokens
    std::uint64_t dropped = 0;  // shorter runs that are left out, because the result would be too large
};

// min_principals: 2 or more; min_length: 1 or more, shorter runs are not returned. If the runs together would
// have more than kMaxSharedTokens tokens, the shortest are left out. Fault kinds: invalid, cancelled.
SharedRuns shared_runs(const PrincipalTexts& texts, std::uint32_t min_principals, std::uint32_t min_length,
                       SegmentJob& job);

}  // namespace suffixsvc
