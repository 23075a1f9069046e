// Finds the hubs of a segment (segment/format/segment_format.h): all lcp intervals with at least hub_min
// entries.
//
//   lcp   0 1 3 3 1 0 2            an interval of depth d: a run of entries that share d context tokens,
//         └───d 1───┘ └d2┘         its neighbours share fewer; intervals are nested or disjoint
//           └d3─┘
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/sync/job.h"
#include "segment/format/segment_texts.h"

namespace suffixsvc {

// The sorted columns, in memory or mapped, and the weights of votes.
struct SortedColumns {
    SortedColumns(const std::uint8_t* file, const SegmentLayout& layout, const SegmentCounts& counts,
                  const TextMap& map, std::span<const std::uint32_t> text_weights)
        : order(file + layout[Column::order].offset),
          next(file + layout[Column::next].offset),
          lcp(file + layout[Column::lcp].offset),
          code_bytes(counts.code_bytes),
          entries(counts.entries),
          alphabet(counts.alphabet),
          texts(map),
          weights(text_weights) {}

    const std::uint8_t *order, *next, *lcp;
    std::uint32_t code_bytes, entries, alphabet;
    const TextMap& texts;
    std::span<const std::uint32_t> weights;  // by text; empty: all are 1

    std::uint32_t position(std::uint32_t entry) const {
        std::uint32_t p;
        std::memcpy(&p, order + std::size_t{entry} * 4, 4);
        return p;
    }
};

struct HubList {
    std::vector<std::uint32_t> start;
    std::vector<std::uint32_t> index;
    std::vector<SegmentHub> hubs;
    std::uint32_t hub_min = 0;
};

// At most kExactEntries, so that without doubling every level is counted exactly or is a hub.
inline constexpr std::uint32_t kHubMin = 256;

// hub_min 0: kHubMin, doubled until the hubs take at most half a byte per entry.
HubList find_hubs(const SortedColumns& columns, std::uint32_t hub_min, SegmentJob& job);

inline std::uint32_t saturated(std::uint64_t votes) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(votes, 0xFFFFFFFFu));
}

}  // namespace suffixsvc
