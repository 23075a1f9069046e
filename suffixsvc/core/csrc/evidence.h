// The evidence for what comes next: every context of the current position that was seen before, in the
// session's own text and in its namespaces, turned into candidates with probabilities.
//
// Where contexts are found and what of them counts: contexts.h. What a namespace has sealed counts as if it
// were still in its index (sealed.h): votes of both add up in the same slot, the longest context of both is
// followed.
//
// Threads: the caller holds a Reading (grace.h).
#pragma once

#include <array>
#include <vector>

#include "index.h"
#include "learner.h"

namespace suffixsvc {

// Namespaces that one session can draft from, its own included.
inline constexpr std::size_t kMostNamespaces = 8;

class Sealed;

// A place in a segment.
struct SealedAt {
    std::uint32_t part = 0;  // of Sealed::parts()
    std::uint32_t position = 0;
};

// A match that is followed although tokens differed: what stood there before, with other values filled in.
struct Recovery {
    Cursor at;                      // in an index
    SealedAt sealed;                // in a segment: of the next token
    std::uint8_t index = kNoIndex;  // of Sources::indexes, or kSealed
    std::uint8_t misses = 0;        // tokens that differed
    std::uint8_t hits = 0;          // tokens it got right since the last one that differed

    static constexpr std::uint8_t kNoIndex = 0xFF;
    static constexpr std::uint8_t kSealed = 0xFE;
};

// A position: where the last tokens stand in each index, and how well things went on the way there. Cheap to
// copy; drafting moves copies along.
struct View {
    std::array<Cursor, 1 + kMostNamespaces> cursors{};  // [0] the session's own text, then the namespaces
    std::array<std::uint32_t, kSources> run{};  // tokens the match model of a source got right in a row
    std::array<Recovery, kSources> recoveries{};
    std::uint32_t history = 0;  // bit i: whether the best candidate was right i tokens ago
    Token last = -1;
    std::uint32_t sealed = 0;  // the position in Sealed
};

// The indexes a view points into, and who is asking: evidence that only `writer` wrote is not
// namespace evidence.
struct Sources {
    std::vector<const Index*> indexes;
    std::uint32_t writer = 0;
    Sealed* sealed = nullptr;  // null where no namespace has segments
};

struct Candidate {
    Token token;
    float logit;              // the mixers' mean
    std::uint8_t source;      // 0 session, 1 namespace: whose longest context knows the token
    std::uint32_t match_len;  // of that context
    Inputs inputs;
    std::array<std::uint32_t, kInputs> features;  // 0xFFFFFFFF: no input
    Logits logits;
};

// What the models that follow one text say comes next, by source; -1: nothing.
struct Followed {
    std::array<Token, kSources> match{-1, -1};
    std::array<std::uint32_t, kSources> match_len{};
    std::array<std::uint8_t, kSources> match_index{};  // of Sources::indexes, or Recovery::kSealed
    SealedAt match_at;                                 // of source 1, where it is in a segment
    std::array<Token, kSources> recovery{-1, -1};
};

struct Evidence {
    std::vector<Candidate> candidates;  // as they were found, those of long contexts first
    std::vector<std::uint8_t> order;    // the best first
    std::array<std::uint32_t, kMixers> sets{};
    Followed followed;

    const Candidate& best(std::size_t rank) const { return candidates[order[rank]]; }
    std::size_t bytes() const { return candidates.capacity() * sizeof(Candidate) + order.capacity(); }
};

// All candidates for the next token at `view`; `width` candidates of each context are considered.
void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out);

// Notes how a token came true for the models of a view, before its cursors move over it. `followed` is what
// collect() found for the view; `expected` whether the token was the best candidate.
void note(const Sources& sources, View& view, const Followed& followed, Token token, bool expected);

// Moves a view along by a drafted token, taken to be the one expected.
void advance(const Sources& sources, View& view, const Followed& followed, Token token);

// What collect() weighs, for tests: the contexts of a position in order of source and order, each with the
// votes of all candidates.
struct ContextVotes {
    int source, order;
    std::uint32_t match_len, total;
    Token newest;
    std::vector<std::uint32_t> votes;  // by candidate
};
std::vector<ContextVotes> contexts(const Sources& sources, const View& view, int width, Evidence& out);

// Notes whom a drafted token was taken from: the text, not the asker's own, of the longest context that it
// followed. `view` is the position that it was drafted at, one that collect() has seen.
void note_drafted(const Sources& sources, const View& view, Token token);

// Forgets what the cursors' index would have to be asked for again.
void drop_recoveries(View& view);

// Teaches all candidates of a position what really came.
void learn(Learner& learner, const Evidence& evidence, Token truth);

}  // namespace suffixsvc
