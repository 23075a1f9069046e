// Compares what is drafted of shared text with what is appended afterwards, for all sessions of one
// principal: a prober is offered drafts and does not append what its model wrote.
//
//   open     drafted tokens of shared text that what is appended next may still agree with
//   excess   += E            for a draft of which E such tokens were expected to match, once a token was
//                            appended that it does not have, or all of it was
//            -= kCredit      for each that did
//            += n            for n open tokens that nothing was appended after: the session ended, or went
//                            on elsewhere; of E what was expected of them is left out
//            decays by the limit in kDecaySeconds, and is never negative
//
// The probabilities are calibrated: answers take 1 - kCredit for each match in the mean, however few match,
// and the excess returns to 0. What is left of the credit pays for as many tokens without an answer: the last
// draft of a generation, if one is asked for after its last token or if it is cancelled.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>

namespace suffixsvc {

struct ProbeCounts {
    std::uint64_t drafts = 0;      // with tokens of shared text
    std::uint64_t drafted = 0;     // such tokens; those of repeated drafts at one place once
    double expected = 0.0;         // matches of drafts that were answered, as predicted
    std::uint64_t matched = 0;     // of these drafts
    std::uint64_t unanswered = 0;  // drafted tokens that nothing was appended after
    std::uint64_t refused = 0;     // steps that were refused or, because of open tokens, got no draft
    std::uint64_t open = 0;        // at present
    double excess = 0.0;           // at present
};

// How a session's tokens change the counts.
struct ProbeChange {
    std::uint64_t drafts = 0, drafted = 0, matched = 0, unanswered = 0;
    double expected = 0.0;
    std::int64_t open = 0;
};

// Threads: any. Its mutex is held for a few operations.
class ProbeMeter {
  public:
    using Clock = std::chrono::steady_clock;

    // Excess above which steps are refused. While kOpenLimits times as many tokens are open, none is offered.
    void set_limit(double limit) {
        const std::scoped_lock lock(mutex_);
        decay();
        limit_ = limit;
    }
    struct Wait {
        double seconds = 0.0;  // until a step may ask for a draft; 0: now
        double excess = 0.0, limit = 0.0;
    };
    // A step asks for a draft. A refusal is counted.
    Wait wait() {
        const std::scoped_lock lock(mutex_);
        decay();
        if (counts_.excess <= limit_) return {};
        ++counts_.refused;
        const double seconds = (counts_.excess - limit_) * kDecaySeconds / limit_;
        return {std::max(kLeastWait, seconds), counts_.excess, limit_};
    }
    // Whether so many tokens are open that the step gets no draft. It is counted as refused.
    bool full() {
        const std::scoped_lock lock(mutex_);
        if (static_cast<double>(counts_.open) < kOpenLimits * limit_) return false;
        ++counts_.refused;
        return true;
    }
    void count(const ProbeChange& change) {
        const std::scoped_lock lock(mutex_);
        decay();
        counts_.drafts += change.drafts;
        counts_.drafted += change.drafted;
        counts_.expected += change.expected;
        counts_.matched += change.matched;
        counts_.unanswered += change.unanswered;
        counts_.open += static_cast<std::uint64_t>(change.open);
        const double credit = kCredit * static_cast<double>(change.matched);
        const double more = change.expected + static_cast<double>(change.unanswered) - credit;
        counts_.excess = std::max(0.0, counts_.excess + more);
    }
    ProbeCounts counts() {
        const std::scoped_lock lock(mutex_);
        decay();
        return counts_;
    }

  private:
    static constexpr double kCredit = 2.0;
    static constexpr double kOpenLimits = 64.0;
    static constexpr double kDecaySeconds = 600.0;
    static constexpr double kLeastWait = 0.001;

    void decay() {
        const Clock::time_point now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - at_).count();
        at_ = now;
        counts_.excess = std::max(0.0, counts_.excess - seconds * limit_ / kDecaySeconds);
    }

    std::mutex mutex_;
    ProbeCounts counts_;
    double limit_ = std::numeric_limits<double>::max();
    Clock::time_point at_ = Clock::now();
};

}  // namespace suffixsvc
