// A decode step of a session in one call, and the steps of many sessions side by side.
//
//   step:  place the tokens ──> price the last draft ──> append, learn ──> draft
//            │ gap, conflict, full, closed: nothing was applied
//
// What a step of the target gave may be told in parts: as long as it is the beginning of what was drafted,
// the next tokens are taken to be of the same step.
//
// Threads: steps of one session take turns (a mutex of its own); everything else is the session's own
// business. step_all uses helper threads that live as long as the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "session.h"

namespace suffixsvc {

// What the steps of one namespace came to, since the process began.
struct StepCounters {
    std::atomic<std::uint64_t> steps{0};     // that asked for a draft
    std::atomic<std::uint64_t> drafts{0};    // answered with at least one token
    std::atomic<std::uint64_t> drafted{0};   // tokens
    std::atomic<std::uint64_t> accepted{0};  // tokens
};

struct StepArguments {
    std::span<const Token> tokens;
    std::int64_t at = -1;                   // position of tokens[0]; -1 = next
    std::size_t max_tokens = 0;             // 0 only appends
    std::shared_ptr<const CostCurve> cost;  // never null, at least one entry
    bool tree = false;
    DraftBounds bounds;
    // What the text has to end with before `tokens`, or nothing is done; empty = anything.
    std::span<const Token> after;
    // What was really sent to the target; width 0 = our own last draft, whole.
    std::int32_t width = 0;
    std::int32_t accepted = 0;
};

enum class StepStatus : int { done, gap, conflict, full, closed, failed, not_tokens, elsewhere };

struct StepOutcome {
    StepStatus status = StepStatus::done;
    std::vector<DraftToken> draft;
    std::size_t length = 0;    // tokens the session holds now; what a gap or an overflow is told with
    std::size_t position = 0;  // conflict: the first that differs
    Token have = 0, got = 0;   // conflict: the two tokens
    std::string reason;        // failed: what was thrown
};

class Stepper {
  public:
    // The session outlives the stepper. `most` is how many tokens the session may hold.
    Stepper(Session& session, std::shared_ptr<StepCounters> counters, std::size_t most);
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;

    // Never throws: what the session throws is a status.
    StepOutcome step(const StepArguments& arguments) noexcept;
    // Waits for a step under way. A closed session applies nothing.
    void set_closed(bool closed);
    // The last draft was not answered: what follows is not judged by it.
    void forget_draft();

  private:
    StepOutcome take(const StepArguments& arguments);
    std::size_t agree(std::span<const Token> truth);
    void forget_last();
    std::size_t price(const StepArguments& arguments, std::span<const Token> fresh);

    std::mutex mutex_;
    Session& session_;
    std::shared_ptr<StepCounters> counters_;
    std::size_t most_;
    bool closed_ = false;
    // The last draft, while what was written since is its beginning: `agreed_` tokens, up to node
    // `agreed_at_`.
    std::vector<DraftToken> last_;
    std::size_t agreed_ = 0;
    std::int32_t agreed_at_ = -1;
    std::shared_ptr<const CostCurve> last_cost_;
};

struct PlannedStep {
    Stepper* stepper;
    StepArguments arguments;
    StepOutcome outcome;
};

// All steps, on as many cores as there are; no stepper stands twice in it.
void step_all(std::vector<PlannedStep>& steps);

}  // namespace suffixsvc
