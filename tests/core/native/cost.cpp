// The filter of cost curves: any sequence of calls with any entries leaves finite values and variances >= 0,
// and entries that do not exist are refused.
#include <cmath>
#include <stdexcept>

#include "common.h"
#include "cost/kalman_filter.h"

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

}  // namespace

void stress_cost(const StressArguments& arguments) {
    std::mt19937 random(arguments.seed);
    std::uniform_real_distribution<double> share(0.0, 1.0);
    for (int round = 0; round < arguments.rounds; ++round) {
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

}  // namespace suffixsvc
