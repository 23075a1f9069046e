// The contexts of a position that were seen before, by source and order; for contexts.cpp and
// sealed.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "evidence.h"

namespace suffixsvc {

inline constexpr std::uint32_t kMinMatch = 5;  // match models follow contexts at least this long
inline constexpr std::size_t kNodesPerSlot = 5;
inline constexpr std::size_t kConsidered = 4;  // slots of each source that count for anything: the deepest

struct Place {
    const Index* index;
    NodeId id;
};

// One order of one source, over all indexes and segments of that source.
struct Slot {
    std::uint32_t match_len = 0;
    std::uint32_t total = 0;
    Token newest = -1;  // the follower seen last, at the longest context
    std::size_t places = 0;
    bool sealed = false;  // segments have a place in it, too: those whose SealedPart::rung says so
    std::array<Place, kNodesPerSlot> at;

    bool empty() const { return places == 0 && !sealed; }
};

inline constexpr std::size_t kSlots = kSources * kOrderCount;
using Slots = std::array<Slot, kSlots>;  // by source and order

struct Match {
    Token token = -1;
    std::uint32_t len = 0;
    std::uint8_t index = Recovery::kNoIndex;
    SealedAt at;  // where index is kSealed
};

// The context of each order in one index.
struct Ladder {
    const Index* index = nullptr;
    struct Step {
        std::uint32_t len = 0;  // longest context that ends in the same places; 0: none of this order
        NodeId id = kNoNode;    // kNoNode: nothing that counts followed
    };
    std::array<Step, kOrderCount> steps;
};

}  // namespace suffixsvc
