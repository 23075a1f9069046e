// The driver's arithmetic. The filter of cost curves: any sequence of calls with any entries leaves finite
// values and variances >= 0, and entries that do not exist are refused. Acceptance tables and costs of steps:
// results stay in their bounds for any arguments.
#include <cmath>
#include <stdexcept>

#include "common.h"
#include "driver/acceptance_table.h"
#include "driver/kalman_filter.h"
#include "driver/step_costs.h"

namespace suffixsvc {

namespace {

bool is_refused(const KalmanFilter& filter, std::size_t i) {
    try {
        (void)filter.difference_variance(0, i);
        return false;
    } catch (const std::out_of_range&) {
        return true;
    }
}

void stress_filter(std::mt19937& random, int rounds) {
    std::uniform_real_distribution<double> share(0.0, 1.0);
    for (int round = 0; round < rounds; ++round) {
        const std::size_t n = 1 + random() % 40;
        std::vector<double> prior(n * n, 0.1);
        for (std::size_t i = 0; i < n; ++i) prior[i * n + i] += share(random);
        KalmanFilter filter(prior, n, share(random), share(random));
        for (int step = 0; step < 200; ++step) {
            switch (random() % 8) {
                case 0:
                    filter.forget(share(random));
                    break;
                case 1:
                    filter.reset(share(random));
                    break;
                case 2:
                    filter.observe_robustly(random() % n, 10.0 * share(random) - 5.0, 1e-3 + share(random));
                    break;
                default:
                    filter.observe(random() % n, 10.0 * share(random) - 5.0, 1e-3 + share(random));
            }
        }
        for (std::size_t i = 0; i < n; ++i)
            require(std::isfinite(filter.value(i)) && filter.variance(i) >= 0.0 &&
                        filter.difference_variance(i, 0) >= -1e-9,
                    "values are finite, variances are not negative");
        require(is_refused(filter, n) && is_refused(filter, static_cast<std::size_t>(-1)),
                "entries that do not exist are refused");
    }
}

void stress_acceptance(std::mt19937& random) {
    std::uniform_real_distribution<double> share(0.0, 1.0);
    AcceptanceTable table;
    for (int step = 0; step < 300; ++step) {
        std::vector<std::int64_t> drafted(random() % 9), written(random() % 9);
        std::vector<double> raw(random() % 9);
        for (auto* each : {&drafted, &written})
            for (std::int64_t& token : *each) token = random() % 2;
        for (double& each : raw) each = share(random);
        const std::size_t depth = random() % 3 ? random() % 20 : static_cast<std::size_t>(-1) - random() % 4;
        table.label(drafted, raw, written, depth);
        const std::vector<std::size_t> depths(raw.size(), depth);
        for (const double p : table.calibrate(raw, depths))
            require(p >= 0.0 && p <= 1.0, "calibrated probabilities are in 0 .. 1");
    }
    require(table.acceptance(0.5) >= 0.0 && table.acceptance(0.5) <= 1.0, "acceptance is in 0 .. 1");
}

void stress_step_costs(std::mt19937& random) {
    std::uniform_real_distribution<double> share(0.0, 1.0);
    std::vector<double> costs(2 + random() % 70);
    for (double& each : costs) each = share(random);
    const StepCosts known(costs);
    const auto number = [&] {
        const std::size_t any[] = {
            0, 1, random() % 80, random() % 80, static_cast<std::size_t>(-1), static_cast<std::size_t>(-2)};
        return any[random() % std::size(any)];
    };
    for (int step = 0; step < 100; ++step) {
        std::vector<double> paths(random() % 80), extra(random() % 3 ? 0 : random() % 80);
        for (double& each : paths) each = share(random);
        const StepLimits limits{1.0 + share(random), number(), number(), number()};
        const std::vector<Prefix> all = known.evaluate(paths, limits, extra);
        require(all.size() <= std::min(paths.size(), limits.limit), "prefixes are within the limit");
        for (const Prefix& each : all)
            require(each.length < each.width && each.width <= limits.room &&
                        each.width + limits.other_tokens < costs.size(),
                    "batches are within the room and the curve");
        const auto best = known.best(paths, limits, extra, number());
        require(!best || best->gain > 0.0, "the best prefix gains");
    }
}

}  // namespace

void stress_driver(const StressArguments& arguments) {
    std::mt19937 random(arguments.seed);
    stress_filter(random, arguments.rounds);
    for (int round = 0; round < arguments.rounds; ++round) {
        stress_acceptance(random);
        stress_step_costs(random);
    }
}

}  // namespace suffixsvc
