#include "driver/step_costs.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace suffixsvc {

StepCosts::StepCosts(std::vector<double> costs) : costs_(std::move(costs)), padded_(costs_.size()) {
    if (costs_.size() < 2) throw std::invalid_argument("costs must have an entry of a plain step");
    std::size_t best = costs_.size() - 1;
    for (std::size_t width = costs_.size(); width-- > 0;) {
        if (costs_[width] <= costs_[best]) best = width;
        padded_[width] = best;
    }
}

std::size_t StepCosts::cheapest(std::size_t width, std::size_t widest) const {
    if (padded_[width] <= widest) return padded_[width];
    const auto first = costs_.begin() + static_cast<std::ptrdiff_t>(width);
    const auto last = costs_.begin() + static_cast<std::ptrdiff_t>(widest) + 1;
    return static_cast<std::size_t>(std::min_element(first, last) - costs_.begin());
}

std::vector<Prefix> StepCosts::evaluate(std::span<const double> paths, const StepLimits& step,
                                        std::span<const double> extra) const {
    const std::size_t widest_known = costs_.size() - 1;
    // no step is wider than the curve, so the sums below cannot overflow
    if (step.other_tokens >= widest_known) return {};
    const std::size_t base = 1 + step.other_tokens;
    const std::size_t widest = std::min(widest_known - step.other_tokens, step.room) + step.other_tokens;
    std::size_t n = std::min({paths.size(), step.limit, widest > base ? widest - base : 0});
    if (!extra.empty()) n = std::min(n, extra.size());
    const double plain = costs_[base];
    double tokens = 0.0;
    std::vector<Prefix> found;
    found.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
        tokens += paths[i];
        const std::size_t width = cheapest(base + i + 1, widest);
        const double cost = costs_[width] - plain + (extra.empty() ? 0.0 : extra[i]);
        found.push_back({i + 1, width - step.other_tokens, tokens - step.rate * cost, tokens, cost});
    }
    return found;
}

std::optional<Prefix> StepCosts::best(std::span<const double> paths, const StepLimits& step,
                                      std::span<const double> extra, std::size_t longer_than) const {
    std::optional<Prefix> best;
    for (const Prefix& each : evaluate(paths, step, extra))
        if (each.length > longer_than && each.gain > (best ? best->gain : 0.0)) best = each;
    return best;
}

}  // namespace suffixsvc
