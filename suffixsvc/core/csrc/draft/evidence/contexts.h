// Finds the contexts of a position that occurred before, and their followers, for evidence.cpp.
//
// One walk from the longest match towards the root of each index (index/index.h) visits each distinct match
// length once. A context takes the slot of the largest order (draft/learning/learner.h, kOrders) that it
// covers. Only the deepest slots of each source are evaluated, and a walk ends with them: shorter contexts
// add almost nothing (measured: 0.04 % of the speedup over twelve logs), and they are the ones with many
// edges. The first slots propose candidates until they have enough votes; for the others only their total and
// the votes of these candidates are counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "draft/evidence/evidence.h"

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

// Number of evaluated slots whose followers become candidates.
inline constexpr int kProposingSlots = 3;
// votes of those slots after which shorter contexts propose nothing
inline constexpr std::uint32_t kEnoughVotes = 16;
// Edges of a node with many edges that are scanned: the first and the last (newest) ones.
struct ScanLimits {
    std::size_t first, last;
    constexpr std::size_t total() const { return first + last; }
};
inline constexpr ScanLimits kDeepestScan{16, 4};
inline constexpr ScanLimits kSecondaryScan{8, 2};
inline constexpr std::size_t kSealedVotes = 64;  // ranked followers of one order in all segments
inline constexpr std::size_t kMaxStrongest = 4;  // candidates from the deepest slot
inline constexpr std::size_t kMaxSecondary = 2;  // candidates from each other slot
inline constexpr std::size_t kMaxProposed = kSources * (kProposingSlots * kMaxStrongest + 2);

using CandidateVotes = std::array<std::uint32_t, kMaxProposed>;

// The contexts of one position. Plain data on the stack: most of it is not initialised.
class Contexts {
  public:
    // Looks up a position. Sets the tokens of out.candidates, and out.predictions.
    void find(const Sources& sources, const View& view, int width, Evidence& out);

    const ContextSlot& slot(std::size_t number) const { return slots_[number]; }
    // Indexes of the non-empty evaluated slots: by source, the deepest first.
    std::span<const std::uint8_t> found() const { return {found_.data(), num_found_}; }
    // Index of the largest order of a source that has votes; -1: none.
    int deepest(std::size_t source) const { return deepest_[source]; }
    // By candidate: how often it followed the contexts of a slot of found().
    const CandidateVotes& votes(std::size_t slot) const { return votes_[slot]; }

  private:
    struct Vote {
        Token token;
        std::uint32_t votes;
    };
    // A range of all_.
    struct Followers {
        std::uint32_t begin = 0;
        std::uint32_t end = 0;
        bool complete = false;  // contains every follower
    };
    static constexpr std::size_t kMaxVotes = kNodesPerSlot * kDeepestScan.total() + kSealedVotes;

    void propose_followers(const Sources& sources, std::size_t source, int width, Evidence& out);
    void count_votes(const Sources& sources, const Evidence& out);
    void count_followers(const Sources& sources, std::size_t slot, const ScanLimits& limits);
    void add_sealed(const Sources& sources, std::size_t slot);
    void add(Followers& followers, Token token, std::uint32_t votes);
    std::size_t strongest(const Followers& followers, std::size_t width,
                          std::array<Vote, kMaxStrongest>& top) const;

    ContextSlots slots_;
    std::array<std::uint8_t, kSources * kEvaluatedSlots> found_;
    std::size_t num_found_ = 0;
    std::array<Followers, kContextSlots> followers_;
    std::array<CandidateVotes, kContextSlots> votes_;
    std::array<int, kSources> deepest_{-1, -1};
    std::size_t size_ = 0;
    std::array<Vote, kSources * kProposingSlots * kMaxVotes> all_;
};

}  // namespace suffixsvc
