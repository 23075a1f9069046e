// A decode step of a session in one call, and the steps of many sessions in parallel.
//
//   step:  place the tokens ──> record the cost of the last step ──> append, learn ──> draft
//            │ gap, conflict, full, closed, ...: refused without a change
//
// The tokens of a target step may be reported in parts: as long as they are a prefix of a drafted path, the
// next tokens are attributed to the same step.
//
// Threads: a mutex serialises the steps of a session. step_all uses the helper threads of parallel_for.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/sync/write_signal.h"
#include "draft/session/open_draft.h"
#include "draft/session/probe_meter.h"
#include "draft/session/session.h"

namespace suffixsvc {

// Counters of the steps of one namespace, since the process began. A step adds to them without a lock.
struct StepCounters {
    using Counter = std::atomic<std::uint64_t>;
    using BySource = std::array<Counter, kSources>;  // DraftToken::source

    Counter steps{0};        // that requested a draft
    Counter drafts{0};       // drafts of at least one token
    Counter drafted{0};      // drafted tokens
    Counter accepted{0};     // accepted tokens
    BySource drafts_by{};    // drafts with a token of the source
    BySource drafted_by{};   // drafted tokens of the source
    BySource accepted_by{};  // accepted tokens of the source, as far as they are of the stepper's own draft
    // Steps whose draft is empty, by reason; see DraftMiss.
    Counter no_context{0}, not_worth_cost{0}, over_limit{0}, off{0};
    // Expected number of accepted tokens, and the cost of the executed steps beyond that of plain ones in
    // plain steps; both in millionths.
    Counter expected_millionths{0}, verify_millionths{0};
    // The time of the plain steps that accepted tokens replaced, and of verify_millionths; in nanoseconds.
    Counter avoided_ns{0}, verify_ns{0};

    void count_draft(const std::vector<DraftToken>& draft, const DraftSummary& summary);

    // Told of every step that wrote tokens; null: no thread is. Set before the first step.
    std::shared_ptr<WriteSignal> written;
};

// Estimates the duration of a plain step of one session's target: the median of the time from a draft to the
// tokens that answer it, divided by the cost of the step. It includes the transport and the target's queue.
class PlainStepTimer {
  public:
    using Clock = std::chrono::steady_clock;

    // A draft is about to be returned.
    void start() { started_ = Clock::now(); }
    // The next tokens do not answer the last draft.
    void stop() { started_ = {}; }
    // Tokens arrived that a step of this cost wrote.
    void note(double cost);
    // The estimate; 0 without an observation.
    double seconds() const { return seconds_; }

  private:
    Clock::time_point started_{};  // of the epoch: not started
    double seconds_ = 0.0;
};

struct StepArguments {
    std::span<const Token> tokens;
    std::int64_t at = -1;        // position of tokens[0]; -1: the end of the text
    std::size_t max_tokens = 0;  // 0: append only
    // Not null, at least one entry. Entries of steps wider than `max_tokens` and one are not used.
    std::shared_ptr<const CostCurve> cost;
    bool tree = false;
    DraftBounds bounds;
    // The suffix that the text must have before `tokens` are appended; empty: no condition.
    std::span<const Token> after;
    // Width of the step that the target executed, and the drafted tokens it accepted; width 0: this stepper's
    // last draft as a whole.
    std::int32_t width = 0;
    std::int32_t accepted = 0;
};

enum class StepStatus : int {
    done,
    gap,
    conflict,
    full,
    closed,
    failed,
    invalid_tokens,
    context_mismatch,
    // set by StepDispatcher only
    unknown_session,
    duplicate_session,
    stale_sequence,
    probing,       // too little of what was drafted for the principal was matched (see probe_meter.h)
    not_admitted,  // the text would be longer than what was admitted
};

struct StepOutcome {
    StepStatus status = StepStatus::done;
    std::vector<DraftToken> draft{};
    // length of the session's text; for gap, full and not_admitted: the length that explains the refusal
    std::size_t length = 0;
    std::size_t position = 0;    // conflict: position of the first token that differs
    Token have = 0, got = 0;     // conflict: the two tokens
    std::string reason{};        // failed: message of the exception
    ProbeMeter::Wait probing{};  // probing: until when, and why
    std::uint64_t last_seq = 0;  // stale_sequence: sequence number of the last answered request
};

class SessionStepper {
  public:
    // The session must outlive the stepper. `max_tokens`: maximum length of the session's text.
    SessionStepper(Session& session, std::shared_ptr<StepCounters> counters, std::size_t max_tokens);
    SessionStepper(const SessionStepper&) = delete;
    SessionStepper& operator=(const SessionStepper&) = delete;
    ~SessionStepper();

    // Never throws: an exception of the session becomes StepStatus::failed.
    StepOutcome step(const StepArguments& arguments) noexcept;
    // Waits for a running step. Steps of a closed session are refused.
    void set_closed(bool closed);
    // The last draft was not delivered: later tokens are not compared with it.
    void forget_draft();
    // From now on nothing is learned from tokens: another process drafts, and learns.
    void stop_learning();
    // Counts from now on how drafts are answered; null: they are not counted.
    void set_meter(std::shared_ptr<ProbeMeter> meter);
    // The text may grow by at least `tokens` from its present length; steps beyond what was admitted are
    // refused. Before the first call all are admitted.
    void admit(std::size_t tokens);

  private:
    StepOutcome step_locked(const StepArguments& arguments);
    std::size_t match_last_draft(std::span<const Token> truth);
    void clear_last_draft();
    void count_accepted(std::size_t accepted);
    std::size_t record_cost(const StepArguments& arguments, std::span<const Token> fresh);

    std::mutex mutex_;
    Session& session_;
    std::shared_ptr<StepCounters> counters_;
    std::size_t max_tokens_;
    std::optional<std::size_t> admitted_;  // length up to which steps may append; nullopt: any
    bool closed_ = false;
    bool learns_ = true;
    // The last draft, while the tokens written since are a prefix of it: `agreed_` tokens, up to
    // node `agreed_at_`.
    std::vector<DraftToken> last_;
    std::size_t agreed_ = 0;
    std::int32_t agreed_at_ = -1;
    std::shared_ptr<const CostCurve> last_cost_;
    std::size_t last_widest_ = 1;  // entries of last_cost_ that the last draft could use
    PlainStepTimer timer_;
    std::shared_ptr<ProbeMeter> meter_;  // null: none
    OpenDraft open_;                     // while there is a meter
};

struct PlannedStep {
    SessionStepper* stepper;
    StepArguments arguments;
    StepOutcome outcome;
};

// Executes all steps, in parallel on all cores; each stepper may occur once.
void step_all(std::vector<PlannedStep>& steps);

}  // namespace suffixsvc
