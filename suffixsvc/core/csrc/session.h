// One generation: its own text and index, its growing text in its namespace, and the drafts it asks for.
//
// Threads: one call at a time per session (a mutex sees to that); sessions of one namespace run
// concurrently. Namespace indexes are read without locks (grace.h); the session's own namespace is locked
// only while a token is inserted.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "evidence.h"
#include "index.h"
#include "learner.h"
#include "sealed.h"

namespace suffixsvc {

struct DraftToken {
    Token token;
    std::int32_t parent;  // index in the draft, -1 = root
    float p;              // P(accepted | parent accepted)
    std::uint8_t source;  // 0 session, 1 namespace
    std::uint32_t match_len;
};

enum class Shape { chain, tree };

// What a caller bounds a draft with beside its cost. A match is the context that the evidence of the
// likeliest first token agreed on.
struct DraftBounds {
    double least_path = 0.0;  // no token whose path is less likely to be accepted
    // At most `beyond` tokens more than floor(factor * match + offset); none where that is below 1.
    double match_factor = 0.0;
    double match_offset = std::numeric_limits<double>::infinity();
    std::size_t beyond = 0;

    // How many tokens a draft may have, of `most`.
    std::size_t longest(std::uint32_t match_len, std::size_t most) const;
};

// The relative cost of a target step of w tokens; cost[w - 1], w = 1 .. size().
using CostCurve = std::vector<double>;

class Session {
  public:
    // `own` may be null: the session then remembers nothing beyond itself. `writer` tells its own
    // evidence from that of others and is never reused within a process.
    Session(std::shared_ptr<Index> own, std::vector<std::shared_ptr<Index>> reads,
            std::shared_ptr<Learner> learner, std::uint32_t writer, std::uint32_t tail_tokens);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Tokens the model did not write: prompt, tool results, turns.
    void append_context(std::span<const Token> tokens);
    // Tokens the model wrote. `learns` is false where they were learned from before (a resumed session).
    void append(std::span<const Token> tokens, bool learns);
    // What the step before this append cost and gave: called once a step, before append.
    void account(double step_cost, std::size_t tokens);
    // The same step gave more tokens: it is told in parts.
    void account_more(std::size_t tokens);
    std::vector<DraftToken> draft(std::size_t max_tokens, const CostCurve& cost, Shape shape,
                                  const DraftBounds& bounds = {});

    // Position of the first token that differs from `tokens` laid at `at`, or -1; what lies behind the
    // end does not differ.
    std::int64_t first_difference(std::size_t at, std::span<const Token> tokens) const;
    bool ends_with(std::span<const Token> tokens) const;
    std::size_t length() const;
    std::vector<Token> text(std::size_t from, std::size_t to) const;
    // Runs of output, each [first, last) in the text.
    std::vector<std::pair<std::size_t, std::size_t>> output_runs() const;
    // All n-grams of the session's whole text with their counts, flat: n tokens each.
    void ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const;
    double gain() const;
    // Memory that it holds: its text, index and buffers, and of its namespace's index its share. Takes no
    // lock.
    std::uint64_t held_bytes() const;

    // What the next draft would be made from: followers that were considered, contexts, the text followed.
    struct Look {
        std::vector<Token> candidates;
        std::vector<ContextVotes> contexts;
        Followed followed;
    };
    Look look(int width);

    // Takes what this session wrote out of its namespace again, from the end on and in turns (index.h): what
    // is left of it can still be drafted from meanwhile. Idempotent.
    void retract();
    // Nothing is written or drafted any more; what is in the namespace is no longer this session's. Gives all
    // memory back but that of the text. Idempotent.
    void end();

  private:
    struct Run {
        std::size_t tail;  // where its context tail begins in text_
        std::size_t first;
        std::size_t last;
        std::size_t piece;  // where the text begins that is kept of its end (index.h, kMostText)
        TextEnd end;
    };
    struct Proposed {  // what the last draft proposed or considered, to learn its probability from
        std::int32_t parent;
        Token token;
        std::uint32_t set;
        Logits logits;
        float p;
        std::int32_t depth = -1;  // tokens of the path up to here; -1: it did not come true, or not yet
    };

    void note_wrote(std::size_t positions);
    void note_held();
    void no_longer_wrote();
    void require_live() const;
    void catch_up(std::span<const Token> added);
    void insert(Token token);
    void learn_proposed(std::span<const Token> truth);
    void price(const CostCurve& cost, std::size_t most);

    mutable std::mutex mutex_;
    std::shared_ptr<Index> own_;
    std::vector<std::shared_ptr<Index>> namespaces_;  // own first
    std::shared_ptr<Learner> learner_;
    std::uint32_t writer_;
    std::uint32_t tail_tokens_;
    std::optional<Index> local_;
    TextEnd local_end_;
    std::vector<Token> text_;
    std::vector<Run> runs_;
    bool in_output_ = false;
    bool retracted_ = false;
    bool ended_ = false;
    std::atomic<std::int64_t> held_{0};   // memory of its own; own_->live knows of it
    std::atomic<std::int64_t> wrote_{0};  // positions of own_ that are its own
    Sources sources_;
    Sealed sealed_;  // beside namespaces_; catch_up() brings it up to date
    View view_;
    std::vector<std::uint64_t> epochs_;  // of namespaces_, that view_ is valid for
    std::vector<Proposed> proposed_;
    std::size_t since_ = 0;  // tokens written since they were proposed
    std::uint32_t cost_class_ = kNoCostClass;
    double slope_ = 0.0;                // the least that a drafted token can cost
    double thrift_ = 1.0;               // see kThrift
    double tokens_ = 1.0, cost_ = 1.0;  // decayed sums: their ratio is the running gain

    static constexpr std::uint32_t kNoCostClass = 0xFFFFFFFFu;
    Evidence root_;            // of the end of the text, where the draft before has collected it ...
    bool root_known_ = false;  // ... and nothing was added since
    Evidence scratch_;
};

}  // namespace suffixsvc
