// Sorts positions of a text by their contexts: the codes before the position, newest first, up to the
// separator (code 0) of the text or `depth` of them. Equal contexts keep their order.
//
// Most significant digit first: a counting sort by the newest code, then group by group by as many further
// codes as fit 64 bits. No group is compared deeper than `depth`, so every input takes at most `depth` rounds
// of linear work per position; a group of equal keys takes one pass.
//
//   codes        u32, codes[0] and the code before every text is 0
//   alphabet     codes are 0 .. alphabet
//   order        in: positions, ascending; out: sorted
//   buckets      out: alphabet + 2; positions whose newest code is c: [buckets[c], buckets[c + 1])
//   job          polled
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/sync/job.h"

namespace suffixsvc {

void sort_contexts(std::span<const std::uint32_t> codes, std::uint32_t alphabet, std::uint32_t depth,
                   std::vector<std::uint32_t>& order, std::vector<std::uint32_t>& buckets, SegmentJob& job);

}  // namespace suffixsvc
