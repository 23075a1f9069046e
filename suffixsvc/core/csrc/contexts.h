// The contexts of a position that were seen before, and what followed them: what evidence.cpp weighs.
//
// Contexts are found by one walk from the longest match towards the root of each index (index.h), so
// each distinct match length is looked at once. A context takes the slot of the largest order (learner.h,
// kOrders) that it covers. Only the deepest few of each source are considered, and a walk ends with them:
// what shorter ones would add is hardly ever anything (measured: 0.04 % of the speedup over twelve logs), and
// they are the ones with many edges. Candidates come from the first of these, until those have votes enough;
// the others are only counted: how often they were seen, and how often a candidate followed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "evidence.h"
#include "slots.h"

namespace suffixsvc {

// Of the slots that are considered, those whose followers become candidates.
inline constexpr int kProposing = 3;
inline constexpr std::uint32_t kEnough = 16;  // votes of those slots: shorter contexts propose nothing more
// Of a wide node's edges the first ones are looked at, and the newest ones.
struct Scanned {
    std::size_t first, last;
    constexpr std::size_t most() const { return first + last; }
};
inline constexpr Scanned kScannedDeepest{16, 4};
inline constexpr Scanned kScannedSecondary{8, 2};
inline constexpr std::size_t kSealedVotes = 64;   // followers in segments of one order that are ranked
inline constexpr std::size_t kMostStrongest = 4;  // followers of the deepest slot that become candidates
inline constexpr std::size_t kMostSecondary = 2;  // of the other ones
inline constexpr std::size_t kMostProposed = kSources * (kProposing * kMostStrongest + 2);

using VotesOfCandidates = std::array<std::uint32_t, kMostProposed>;

// What was found at a position. Plain data on the stack: most of it is not initialised.
class Contexts {
  public:
    // Looks a position up. out.candidates get their tokens, out.followed is filled.
    void find(const Sources& sources, const View& view, int width, Evidence& out);

    const Slot& slot(std::size_t number) const { return slots_[number]; }
    // Numbers of the slots that are considered and not empty: by source, the deepest first.
    std::span<const std::uint8_t> found() const { return {found_.data(), num_found_}; }
    // The largest order of a source, -1: none.
    int deepest(std::size_t source) const { return deepest_[source]; }
    // How often each candidate of `out` followed the contexts of a slot that was found.
    const VotesOfCandidates& votes(std::size_t slot) const { return votes_[slot]; }

  private:
    struct Vote {
        Token token;
        std::uint32_t votes;
    };
    // A part of all_.
    struct Followers {
        std::uint32_t begin = 0;
        std::uint32_t end = 0;
        bool complete = false;  // every follower is there
    };
    static constexpr std::size_t kMostVotes = kNodesPerSlot * kScannedDeepest.most() + kSealedVotes;

    void propose_followers(const Sources& sources, std::size_t source, int width, Evidence& out);
    void count_votes(const Sources& sources, const Evidence& out);
    void tally(const Sources& sources, std::size_t slot, const Scanned& scanned);
    void add_sealed(const Sources& sources, std::size_t slot);
    void add(Followers& followers, Token token, std::uint32_t votes);
    std::size_t strongest(const Followers& followers, std::size_t width,
                          std::array<Vote, kMostStrongest>& top) const;

    Slots slots_;
    std::array<std::uint8_t, kSources * kConsidered> found_;
    std::size_t num_found_ = 0;
    std::array<Followers, kSlots> followers_;
    std::array<VotesOfCandidates, kSlots> votes_;
    std::array<int, kSources> deepest_{-1, -1};
    std::size_t size_ = 0;
    std::array<Vote, kSources * kProposing * kMostVotes> all_;
};

}  // namespace suffixsvc
