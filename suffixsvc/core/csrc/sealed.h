// The sealed half of what a session drafts from: what the segments of its namespaces know of a position.
//
//     text ... x b c │─ d ─ e        the end of the text is position 0; each drafted token that is followed
//     up
//              0 ────┘   └─ f        makes a position that knows the one before it
//
// A segment is asked when evidence is collected at a position. What it answered for the position before says
// where to look (segment.h), so answers are kept: for all positions of the draft under way, and for the end
// of the text from one step to the next.
//
// Threads: those of the session. Its segments may be forgotten from, and its lists replaced, at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "index.h"
#include "learner.h"
#include "segment.h"

namespace suffixsvc {

struct Slot;
struct Ladder;
struct Match;

struct SealedPart {
    std::shared_ptr<const Segment> segment;
    std::size_t index = 0;                      // of Sources::indexes: the namespace that it belongs to
    std::size_t depth = 0;                      // context tokens that are told apart there
    SegmentView view;                           // the longest rungs of the position asked about last, ...
    SegmentEvidence evidence;                   // ... what they know ...
    std::array<std::int8_t, kOrderCount> rung;  // ... the rung in the slot of each order; -1: none
};

class Sealed {
  public:
    // Takes the lists of these indexes that changed. True where one did: positions, and numbers of parts, are
    // no longer those of before. Allocates only then.
    bool refresh(std::span<const std::shared_ptr<Index>> namespaces);
    // The position 0 is the end of this text now; there are no others. The text must stay as it is until the
    // next call.
    void begin(std::span<const Token> text);
    // The position after a token.
    std::uint32_t step(std::uint32_t position, Token token);
    // Looks the position up in all segments, and gathers what followed: of each context the `width` strongest
    // and some more, which may be among the strongest of all parts together.
    void ask(std::uint32_t position, std::size_t width);

    // Of the position asked about last:
    // Fills the slots (those of source 1, by order) of a namespace that has segments; `hot` is what its index
    // knows. As if everything were in one index: contexts are told apart where any part tells them apart.
    void join(std::size_t index, const Ladder& hot, std::span<Slot> slots);
    // The longest context of all segments, where it is longer than `match`.
    void follow(Match& match) const;
    // Votes of a token by order, all segments in the slots summed.
    void votes(Token token, std::array<std::uint32_t, kOrderCount>& out) const;

    // By namespace, the newest first.
    std::span<SealedPart> parts() { return parts_; }
    std::span<const SealedPart> parts() const { return parts_; }
    // Memory of its own.
    std::size_t bytes() const {
        return parts_.capacity() * sizeof(SealedPart) + positions_.capacity() * sizeof(Position) +
               (views_.capacity() + before_.capacity()) * sizeof(SegmentView);
    }
    bool has(std::size_t index) const { return (namespaces_with_ >> index & 1) != 0; }
    // What a part answered for a position; nothing where it was not asked.
    const SegmentView& view(std::uint32_t position, std::size_t part) const {
        return positions_[position].asked ? views_[position * parts_.size() + part] : nothing_;
    }

  private:
    struct Position {
        std::uint32_t before;
        Token token;
        bool asked;
    };
    std::span<const Token> context_of(std::uint32_t position);

    std::vector<std::shared_ptr<const SegmentList::Segments>> lists_;  // of the namespaces
    std::vector<std::uint64_t> versions_;
    std::vector<SealedPart> parts_;
    std::uint32_t namespaces_with_ = 0;  // bit i: indexes[i] has segments
    std::uint64_t forgotten_ = 0;        // outputs of all parts, when the end of the text was asked about
    std::size_t width_ = 0;              // followers gathered of each context
    std::span<const Token> text_;
    std::size_t length_ = 0;  // of the text at the call before
    std::vector<Position> positions_;
    std::vector<SegmentView> views_;   // by position and part
    std::vector<SegmentView> before_;  // by part: one token before the end of the text
    bool has_before_ = false;
    std::array<Token, kSegmentContext> context_;
    SegmentView nothing_;
};

}  // namespace suffixsvc
