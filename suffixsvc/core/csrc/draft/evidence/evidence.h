// The evidence for the next token: every context of the current position that occurred before, in the
// session's own text and in its namespaces, turned into candidates with probabilities.
//
// draft/evidence/contexts.h finds the contexts and defines which of them count. Sealed outputs of a namespace
// count as if they were still in its index (draft/evidence/sealed_segments.h): votes of both are summed in
// the same slot, and the longest context of both provides the match.
//
// Threads: the caller holds an EpochGuard (base/memory/epoch_guard.h).
#pragma once

#include <array>
#include <vector>

#include "draft/learning/learner.h"
#include "index/index.h"

namespace suffixsvc {

// Namespaces that one session can draft from, its own included.
inline constexpr std::size_t kMaxNamespaces = 8;

class SealedSegments;

// A position in a segment.
struct SealedAt {
    std::uint32_t part = 0;  // index in SealedSegments::parts()
    std::uint32_t position = 0;
};

// A match that is continued although tokens differed: recurring text with other values filled in.
struct Recovery {
    Cursor at;                      // position in an index
    SealedAt sealed;                // position of the next token in a segment
    std::uint8_t index = kNoIndex;  // index in Sources::indexes, or kSealed
    std::uint8_t misses = 0;        // tokens that differed
    std::uint8_t hits = 0;          // right predictions since the last token that differed

    static constexpr std::uint8_t kNoIndex = 0xFF;
    static constexpr std::uint8_t kSealed = 0xFE;
};

// The state of a position: its cursor in each index, and the recent success on the path to it. Cheap to copy;
// drafting advances copies.
struct View {
    std::array<Cursor, 1 + kMaxNamespaces> cursors{};  // [0] the session's own text, then the namespaces
    std::array<std::uint32_t, kSources> run{};  // consecutive right predictions of each source's match model
    std::array<Recovery, kSources> recoveries{};
    std::uint32_t history = 0;  // bit i: whether the best candidate was right i tokens ago
    Token last = -1;
    std::uint32_t sealed = 0;  // the position in SealedSegments
};

// The indexes that a view refers to. Evidence that only `writer` wrote is not namespace evidence.
struct Sources {
    std::vector<const Index*> indexes;
    std::uint32_t writer = 0;
    SealedSegments* sealed = nullptr;  // null if no namespace has segments
};

struct Candidate {
    Token token;
    float logit;  // mean of the mixers
    // 0 session, 1 namespace: the source of the longest context with this follower, or of the recovery that
    // alone has it
    std::uint8_t source;
    std::uint32_t match_len;  // length of that context; 0: none
    Inputs inputs;
    std::array<std::uint32_t, kInputs> features;  // 0xFFFFFFFF: no input
    Logits logits;
};

// The predictions of the match models (the last follower of the source's longest match) and of the recovery
// models (the same match, continued after tokens that differed), by source; token -1: none.
struct Predictions {
    std::array<Token, kSources> match{-1, -1};
    std::array<std::uint32_t, kSources> match_len{};
    std::array<std::uint8_t, kSources> match_index{};  // index in Sources::indexes, or Recovery::kSealed
    SealedAt match_at;                                 // for source 1, if the match is in a segment
    std::array<Token, kSources> recovery{-1, -1};
};

struct Evidence {
    std::vector<Candidate> candidates;  // in the order they were found, those of long contexts first
    std::vector<std::uint8_t> order;    // indexes of candidates, the best first
    std::array<std::uint32_t, kMixers> sets{};
    Predictions predictions;

    const Candidate& best(std::size_t rank) const { return candidates[order[rank]]; }
    std::size_t bytes() const { return candidates.capacity() * sizeof(Candidate) + order.capacity(); }
};

// Collects all candidates for the next token at `view`, at most `width` from each context.
void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out);

// Updates the models of a view with the token that followed, before its cursors advance. `predictions` are
// those that collect() found for the view; `expected` states whether the token was the best candidate.
void record_token(const Sources& sources, View& view, const Predictions& predictions, Token token,
                  bool expected);

// Advances a view by a drafted token, which is treated as the expected one.
void advance(const Sources& sources, View& view, const Predictions& predictions, Token token);

// The input of the mixers, for tests: the contexts of a position, ordered by source and order, each with the
// votes of all candidates.
struct ContextVotes {
    int source, order;
    std::uint32_t match_len, total;
    Token newest;
    std::vector<std::uint32_t> votes;  // by candidate
};
std::vector<ContextVotes> contexts(const Sources& sources, const View& view, int width, Evidence& out);

// Records the use of the text that a drafted token was taken from: the text, not the session's own, of the
// longest context that the token followed. `view` is the position that it was drafted at, one that collect()
// was called for.
void record_use(const Sources& sources, const View& view, Token token);

// Drops the recoveries of a view, whose cursors have become invalid.
void drop_recoveries(View& view);

// Trains the learner with all candidates of a position and the token that followed.
void learn(Learner& learner, const Evidence& evidence, Token truth);

}  // namespace suffixsvc
