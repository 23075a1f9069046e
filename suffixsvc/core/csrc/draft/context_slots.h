// The contexts of a position that occurred before, by source and order; for draft/contexts.cpp
// and draft/sealed_segments.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "draft/evidence.h"

namespace suffixsvc {

inline constexpr std::uint32_t kMinMatch = 5;  // the match models use contexts of at least this length
inline constexpr std::size_t kNodesPerSlot = 5;
inline constexpr std::size_t kEvaluatedSlots = 4;  // slots of each source that are evaluated: the deepest

struct NodeRef {
    const Index* index;
    NodeId id;
};

// The contexts of one order of one source, over all indexes and segments of that source.
struct ContextSlot {
    std::uint32_t match_len = 0;
    std::uint32_t total = 0;
    Token newest = -1;  // the most recent follower of the longest context
    std::size_t num_nodes = 0;
    bool sealed = false;  // segments contribute, too: those with SealedPart::level_of[order] >= 0
    std::array<NodeRef, kNodesPerSlot> nodes;

    bool empty() const { return num_nodes == 0 && !sealed; }
};

inline constexpr std::size_t kContextSlots = kSources * kOrderCount;
using ContextSlots = std::array<ContextSlot, kContextSlots>;  // indexed by source * kOrderCount + order

struct Match {
    Token token = -1;
    std::uint32_t len = 0;
    std::uint8_t index = Recovery::kNoIndex;
    SealedAt at;  // if index is kSealed
};

// The context of each order in one index.
struct MatchLevels {
    const Index* index = nullptr;
    struct Step {
        std::uint32_t len = 0;  // longest context with the same end positions; 0: no context of this order
        NodeId id = kNoNode;    // kNoNode: no follower that counts
    };
    std::array<Step, kOrderCount> steps;
};

}  // namespace suffixsvc
