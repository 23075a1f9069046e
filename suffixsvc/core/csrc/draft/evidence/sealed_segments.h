// The segments of a session's namespaces, queried for the positions of a draft.
//
//   text ... x b c │─ d ─ e        position 0 is the end of the text; each drafted token that is explored
//            0 ────┘   └─ f        adds a position that refers to the one before it
//
// A segment is queried when evidence is collected for a position. Its result for the preceding position is a
// hint where to search (segment/query/segment.h), so results are retained: for all positions of the current
// draft, and for the end of the text from one step to the next.
//
// Threads: those of the session. Outputs of its segments may be forgotten, and its lists replaced, at
// any time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "draft/learning/learner.h"
#include "index/index.h"
#include "segment/query/segment.h"

namespace suffixsvc {

struct ContextSlot;
struct MatchLevels;
struct Match;

struct SealedPart {
    std::shared_ptr<const Segment> segment;
    std::size_t index = 0;                          // index of its namespace in Sources::indexes
    std::size_t depth = 0;                          // maximum context length of the namespace
    SegmentView view;                               // levels of the position that was queried last, ...
    SegmentEvidence evidence;                       // ... their evidence, ...
    std::array<std::int8_t, kOrderCount> level_of;  // ... and the level in the slot of each order; -1: none
};

class SealedSegments {
  public:
    // Updates the segment lists of these indexes, one of a namespace each. Returns whether one changed:
    // positions and part numbers are then invalid. Allocates only then.
    bool refresh(std::span<const Index* const> namespaces);
    // Makes the end of this text position 0 and discards all other positions. The text must stay unchanged
    // until the next call.
    void begin(std::span<const Token> text);
    // Adds the position that follows `position` by a token.
    std::uint32_t step(std::uint32_t position, Token token);
    // Queries all segments for the position, and gathers its followers: of each context the `width` strongest
    // and some more, which may be among the strongest of all parts together.
    void query(std::uint32_t position, std::size_t width);

    // ---- results of the last query() ----------------------------------------------------------------
    // Fills the slots (those of source 1, by order) of a namespace that has segments, together with the
    // contexts of its index, `hot`, as if everything were in one index: a context that occurred only where
    // the one of the next larger order did takes that one's slot, unless any part has more occurrences of it.
    void fill_slots(std::size_t index, const MatchLevels& hot, std::span<ContextSlot> slots);
    // Replaces `match` by the longest context of all segments, if that is longer.
    void update_match(Match& match) const;
    // Votes of a token by order, summed over all segments in the slots.
    void votes(Token token, std::array<std::uint32_t, kOrderCount>& out) const;

    // Ordered by namespace, then from the newest to the oldest.
    std::span<SealedPart> parts() { return parts_; }
    std::span<const SealedPart> parts() const { return parts_; }
    // Bytes owned.
    std::size_t bytes() const {
        return parts_.capacity() * sizeof(SealedPart) + positions_.capacity() * sizeof(Position) +
               (views_.capacity() + before_.capacity()) * sizeof(SegmentView);
    }
    bool has_segments(std::size_t index) const { return (namespaces_with_ >> index & 1) != 0; }
    // The result of a part for a position; empty if it was not queried.
    const SegmentView& view(std::uint32_t position, std::size_t part) const {
        return positions_[position].queried ? views_[position * parts_.size() + part] : empty_view_;
    }

  private:
    struct Position {
        std::uint32_t before;
        Token token;
        bool queried;
    };
    std::span<const Token> context_of(std::uint32_t position);

    std::vector<std::shared_ptr<const SegmentList::Segments>> lists_;  // by namespace
    std::vector<std::uint64_t> versions_;
    std::vector<SealedPart> parts_;
    std::uint32_t namespaces_with_ = 0;  // bit i: indexes[i] has segments
    // forgotten outputs of all parts when the end of the text was queried
    std::uint64_t forgotten_ = 0;
    std::size_t width_ = 0;  // followers gathered for each context
    std::span<const Token> text_;
    std::size_t length_ = 0;  // length of the text at the preceding begin()
    std::vector<Position> positions_;
    std::vector<SegmentView> views_;   // indexed by position * parts + part
    std::vector<SegmentView> before_;  // by part: view of the position before the end of the text
    bool has_before_ = false;
    std::array<Token, kSegmentContext> context_;
    SegmentView empty_view_;
};

}  // namespace suffixsvc
