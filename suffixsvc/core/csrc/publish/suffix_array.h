// Suffix array and LCPs of a string, by prefix doubling (Manber and Myers 1993; LCPs by Kasai et al. 2001).
#pragma once

#include <cstdint>
#include <vector>

#include "base/sync/job.h"

namespace suffixsvc {

struct SuffixArray {
    std::vector<std::uint32_t> order;  // positions of the suffixes, sorted
    std::vector<std::uint32_t> rank;   // of the suffix at each position: the inverse of `order`
    std::vector<std::uint32_t> lcp;    // codes shared with the suffix before in `order`; the first is 0
};

// `codes` must be below their number, and the suffixes distinct within `depth` codes: the string consists of
// parts of at most depth - 1 codes, each of which ends with a code that occurs nowhere else.
SuffixArray suffix_array(std::vector<std::uint32_t> codes, std::size_t depth, SegmentJob& job);

}  // namespace suffixsvc
