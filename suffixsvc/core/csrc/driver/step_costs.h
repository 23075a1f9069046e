// Expected-gain rule: how many of the drafted tokens to verify. Pure arithmetic.
//
// A step that sends n drafted tokens emits 1 + sum P(path) tokens on average and costs c[1 + n]. With lambda
// tokens emitted per unit of cost so far, the n that maximises sum P(path) - lambda * c[1 + n] maximises
// tokens per second in the long run (renewal-reward theorem). All prefixes are compared: on a curve with
// steps, a rule that decides token by token stops right before a cheap width.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace suffixsvc {

// The first tokens of a draft.
struct Prefix {
    std::size_t length;  // drafted tokens
    std::size_t width;   // tokens of the batch, the newest emitted token included, other tokens excluded
    double gain;         // expected gain over a plain step, tokens
    double tokens;       // expected accepted tokens
    double cost;         // beyond that of a plain step, in plain steps
};

// Limits of a step, and the other contents of its batch.
struct StepLimits {
    double rate;               // lambda, tokens per unit of cost
    std::size_t limit;         // upper bound of useful drafted tokens
    std::size_t room;          // widest batch, other tokens excluded
    std::size_t other_tokens;  // of the batch: of other generations, or replayed
};

// Costs of a target's steps. Immutable.
class StepCosts {
  public:
    // `costs`: of a step by its width, in plain steps; entry 0 is unused. std::invalid_argument if there is
    // no entry of a plain step.
    explicit StepCosts(std::vector<double> costs);

    // Every prefix that may be sent, the shortest first, at the cheapest width that holds it.
    //
    // paths: P(path) of each token; extra: further cost of each prefix, in plain steps; empty: none. The
    // shorter of both ends the prefixes.
    std::vector<Prefix> evaluate(std::span<const double> paths, const StepLimits& step,
                                 std::span<const double> extra) const;

    // The first prefix of the largest gain that is longer than `longer_than`; none if no gain is positive.
    std::optional<Prefix> best(std::span<const double> paths, const StepLimits& step,
                               std::span<const double> extra, std::size_t longer_than) const;

    const std::vector<double>& costs() const { return costs_; }

  private:
    std::size_t cheapest(std::size_t width, std::size_t widest) const;

    std::vector<double> costs_;
    std::vector<std::size_t> padded_;  // cheapest width from each width on; of equal ones the narrowest
};

}  // namespace suffixsvc
