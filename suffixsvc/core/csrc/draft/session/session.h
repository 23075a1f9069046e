// State of one generation: its text and a local index of it, its growing output in the namespace, and
// its drafts.
//
// Threads: a mutex serialises the calls of a session; sessions of one namespace run concurrently. Namespace
// indexes are read without locks (base/memory/epoch_guard.h); the session's own namespace is locked only
// while a token is inserted.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "draft/evidence/evidence.h"
#include "draft/evidence/sealed_segments.h"
#include "draft/learning/learner.h"
#include "index/index.h"

namespace suffixsvc {

struct DraftToken {
    Token token;
    std::int32_t parent;  // index in the draft; -1: root
    float p;              // P(accepted | parent accepted)
    std::uint8_t source;  // 0 session, 1 namespace
    std::uint32_t match_len;
};

enum class Shape { chain, tree };

// Why a draft is empty.
enum class DraftMiss : std::uint8_t {
    none,        // it is not
    no_context,  // no context of the position occurred before
    cost,        // no token is probable enough for its cost, or at all
    limit,       // the lengths that the caller, its cost curve or its bounds allow are 0
    off,         // the drafting of the session's own namespace is off (Index::drafting)
};

// What Session::draft knows of a draft besides its tokens.
struct DraftSummary {
    DraftMiss miss = DraftMiss::none;
    double expected = 0.0;  // expected number of accepted tokens
};

// Limits of a draft in addition to its cost. A match is the context that the evidence of the most likely
// first token agreed on.
struct DraftBounds {
    double min_path_probability = 0.0;  // minimum probability that the whole path of a token is accepted
    // At most floor(match_factor * match + match_offset) + extra_tokens tokens; none if the floor is below 1.
    double match_factor = 0.0;
    double match_offset = std::numeric_limits<double>::infinity();
    std::size_t extra_tokens = 0;

    // Length limit of a draft, at most `limit`.
    std::size_t longest(std::uint32_t match_len, std::size_t limit) const;
};

inline constexpr int kChainWidth = 2;  // candidates considered per context of a chain

// Cost of a target step of w tokens relative to a plain step: cost[w - 1], w = 1 .. size().
using CostCurve = std::vector<double>;

class Session {
  public:
    // `own` may be null: the session then writes into no namespace. `writer` distinguishes its own evidence
    // from that of others and is never reused within a process.
    Session(std::shared_ptr<Index> own, std::vector<std::shared_ptr<Index>> reads,
            std::shared_ptr<Learner> learner, std::uint32_t writer, std::uint32_t tail_tokens);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // Drafts from these namespaces from now on, and learns in `learner`. What the session writes goes into
    // its own namespace as before, whether or not that is one of them. Any thread: it waits for a running
    // step. At most kMaxNamespaces.
    void read_from(std::vector<std::shared_ptr<Index>> namespaces, std::shared_ptr<Learner> learner);

    // Appends tokens that the model did not write: prompt, tool results, messages.
    void append_context(std::span<const Token> tokens);
    // Appends tokens that the model wrote. `learns` is false if they were learned from before (a
    // resumed session).
    void append(std::span<const Token> tokens, bool learns);
    // Records cost and tokens of the last step: to be called once per step, before append.
    void record_step(double step_cost, std::size_t tokens);
    // Adds tokens to the last recorded step, if it is reported in parts.
    void record_more_tokens(std::size_t tokens);
    // `summary` may be null.
    std::vector<DraftToken> draft(std::size_t max_tokens, const CostCurve& cost, Shape shape,
                                  const DraftBounds& bounds = {}, DraftSummary* summary = nullptr);

    // Position of the first token that differs from `tokens` placed at `at`, or -1; tokens after the end of
    // the text are not compared.
    std::int64_t first_difference(std::size_t at, std::span<const Token> tokens) const;
    bool ends_with(std::span<const Token> tokens) const;
    std::size_t length() const;
    std::vector<Token> text(std::size_t from, std::size_t to) const;
    // Runs of output, each [first, last) in the text.
    std::vector<std::pair<std::size_t, std::size_t>> output_runs() const;
    // All n-grams of the session's whole text with their counts.
    NgramCounts ngrams(std::uint32_t n) const;
    double gain() const;
    // Bytes held: text, local index and buffers, and the session's share of its namespace's index. Takes
    // no lock.
    std::uint64_t held_bytes() const;

    // The evidence for the next draft, for tests: candidates, contexts, predictions.
    struct Inspection {
        std::vector<Token> candidates;
        std::vector<ContextVotes> contexts;
        Predictions predictions;
    };
    Inspection inspect(int width);

    // Removes the session's output from its namespace, from the end on and in batches (index/index.h): until
    // then the rest can be drafted from. Idempotent.
    void retract();
    // Ends writing and drafting; what is in the namespace stays, but no longer counts as this session's.
    // Frees all memory except the text. Idempotent.
    void end();

  private:
    struct Run {
        std::size_t tail;  // start of its context in text_
        std::size_t first;
        std::size_t last;
        std::size_t piece;  // start of the current piece of the run (index/index.h, kMaxText)
        TextEnd end;
    };
    struct Proposed {  // a token that the last draft proposed or considered, to calibrate its probability
        std::int32_t parent;
        Token token;
        std::uint32_t set;
        Logits logits;
        float p;
        // length of the path up to here once it was accepted; -1: not accepted, or not yet
        std::int32_t depth = -1;
    };

    void add_written(std::size_t positions);
    void update_held_bytes();
    void release_written();
    void require_live() const;
    void set_namespaces(std::vector<std::shared_ptr<Index>> namespaces);
    // Whether the session may draft: its own namespace, if it has one, lets it.
    bool may_draft() const { return !own_ || own_->drafting.load(std::memory_order_relaxed); }
    void sync_cursors(std::span<const Token> added);
    void insert(Token token);
    void learn_proposed(std::span<const Token> truth);
    void apply_cost_curve(const CostCurve& cost, std::size_t limit);

    mutable std::mutex mutex_;
    std::shared_ptr<Index> own_;
    std::vector<std::shared_ptr<Index>> namespaces_;  // that it drafts from, own first
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
    std::atomic<std::int64_t> held_{0};     // bytes owned; also counted in own_->live
    std::atomic<std::int64_t> written_{0};  // positions of own_ that this session wrote
    Sources sources_;
    SealedSegments sealed_;  // segments of namespaces_; updated by sync_cursors()
    View view_;
    std::vector<std::uint64_t> epochs_;  // epoch of each namespace that view_ is valid for
    std::vector<Proposed> proposed_;
    std::size_t written_since_ = 0;  // tokens written since proposed_ was filled
    std::uint32_t cost_class_ = kNoCostClass;
    double slope_ = 0.0;                // minimum marginal cost of a drafted token
    double margin_ = 1.0;               // see kGainMargin
    double tokens_ = 1.0, cost_ = 1.0;  // decayed sums: their ratio is the running gain

    static constexpr std::uint32_t kNoCostClass = 0xFFFFFFFFu;
    Evidence root_;            // evidence at the end of the text, valid if root_known_
    bool root_known_ = false;  // collected by the last draft, and nothing was appended since
    Evidence scratch_;
};

}  // namespace suffixsvc
