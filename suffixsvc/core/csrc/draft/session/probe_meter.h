// Compares how many drafts of shared text were expected to match with how many did, for all sessions of one
// principal: a prober is offered drafts and seldom appends what they predicted.
//
//   excess    += P(the first token is right)   for a draft that begins with shared text
//             -= kCredit                       if the next token appended is one that it begins with
//             decays by the limit in kDecaySeconds, and is never negative
//
// The probabilities are calibrated: a caller of which few drafts match is offered few, or such of low
// probability. So its excess stays near 0, however low its hit rate is, unless the probabilities are kCredit
// times too high.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>

namespace suffixsvc {

struct ProbeCounts {
    std::uint64_t drafts = 0;   // that began with shared text
    double expected = 0.0;      // of them, matches as predicted
    std::uint64_t matched = 0;  // of them
    std::uint64_t refused = 0;  // steps
    double excess = 0.0;        // at present
};

// Threads: any. Its mutex is held for a few operations.
class ProbeMeter {
  public:
    using Clock = std::chrono::steady_clock;

    // Excess of expected matches above which steps are refused.
    void set_limit(double limit) {
        const std::scoped_lock lock(mutex_);
        decay();
        limit_ = limit;
    }
    // Seconds until a step may ask for a draft; 0: now. A refusal is counted.
    double wait() {
        const std::scoped_lock lock(mutex_);
        decay();
        if (counts_.excess <= limit_) return 0.0;
        ++counts_.refused;
        return std::max(kLeastWait, (counts_.excess - limit_) * kDecaySeconds / limit_);
    }
    // A draft is returned that begins with shared text, with this probability to match.
    void offered(double expected) {
        const std::scoped_lock lock(mutex_);
        decay();
        ++counts_.drafts;
        counts_.expected += expected;
        counts_.excess += expected;
    }
    // The token that was appended next is one that the draft began with.
    void matched() {
        const std::scoped_lock lock(mutex_);
        ++counts_.matched;
        counts_.excess = std::max(0.0, counts_.excess - kCredit);
    }
    ProbeCounts counts() {
        const std::scoped_lock lock(mutex_);
        decay();
        return counts_;
    }

  private:
    static constexpr double kCredit = 4.0;
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
