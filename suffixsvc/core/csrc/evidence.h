// The evidence for what comes next: every context of the current position that was seen before, in the
// session's own text and in its namespaces, turned into candidates with probabilities.
//
// Contexts are found by one walk from the longest match to the root of each index (index.h), so each
// distinct match length is looked at once. A context takes the slot of the largest order (learner.h,
// kOrders) that it covers.
//
// Threads: the caller holds the shared locks of all indexes in the view.
#pragma once

#include <array>
#include <vector>

#include "index.h"
#include "learner.h"

namespace suffixsvc {

// Namespaces that one session can draft from, its own included.
inline constexpr std::size_t kMostNamespaces = 8;

// A position: where the last tokens stand in each index. Cheap to copy; drafting moves copies along.
struct View {
    std::array<Cursor, 1 + kMostNamespaces> cursors{};  // [0] the session's own text, then the namespaces
    std::array<std::uint32_t, kSources> run{};  // tokens the match model of a source got right in a row
};

// The indexes a view points into, and who is asking: evidence that only `writer` wrote is not
// namespace evidence.
struct Sources {
    std::vector<const Index*> indexes;
    std::uint32_t writer = 0;
};

struct Candidate {
    Token token;
    float p;                  // mixed, before the correction
    std::uint8_t source;      // 0 session, 1 namespace: whose longest context knows the token
    std::uint32_t match_len;  // of that context
    std::array<float, kInputs> inputs;
    std::array<std::uint32_t, kInputs> features;  // 0xFFFFFFFF: no input
};

struct Evidence {
    std::vector<Candidate> candidates;  // best first
    std::uint32_t mixer = 0;
    std::uint32_t match_len = 0;                // longest context of all
    std::array<Token, kSources> match{-1, -1};  // what the match models say
};

// All candidates for the next token at `view`; `width` candidates of each context are considered.
void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out);

// Counts what the match models got right in a row; `match` is what they said.
void count_runs(View& view, const std::array<Token, kSources>& match, Token token);

// Moves a view along by a drafted token. `match` is what collect() found for the view.
void advance(const Sources& sources, View& view, const std::array<Token, kSources>& match, Token token);

// Teaches all candidates of a position what really came.
void learn(Learner& learner, const Evidence& evidence, Token truth);

}  // namespace suffixsvc
