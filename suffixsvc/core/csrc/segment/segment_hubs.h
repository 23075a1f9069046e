// Finds the hubs of a segment (segment/segment_format.h): all lcp intervals with at least hub_min entries.
//
//   lcp   0 1 3 3 1 0 2            an interval of depth d: a run of entries that share d context tokens,
//         └───d 1───┘ └d2┘         its neighbours share fewer; intervals are nested or disjoint
//           └d3─┘
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "segment/segment_format.h"
#include "segment/segment_texts.h"

namespace suffixsvc {

// The sorted columns, in memory or mapped, and the weights of votes.
struct SortedColumns {
    const std::uint8_t* order = nullptr;
    const std::uint8_t* next = nullptr;
    const std::uint8_t* lcp = nullptr;
    std::uint32_t code_bytes = 2;
    std::uint32_t entries = 0;
    std::uint32_t alphabet = 0;
    const TextMap* texts = nullptr;
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

inline constexpr std::uint32_t kHubMin = 256;

// hub_min 0: kHubMin, doubled until the hubs take at most half a byte per entry. False: cancelled.
bool find_hubs(const SortedColumns& columns, std::uint32_t hub_min, HubList& out, SegmentJob& job);

}  // namespace suffixsvc
