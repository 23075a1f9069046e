#include "driver/kalman_filter.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace suffixsvc {

namespace {

// Standard deviations from which on a measurement is an outlier, and outliers in a row that are a change.
constexpr double kOutlier = 2.0;
constexpr int kOutliersOfAChange = 3;

}  // namespace

KalmanFilter::KalmanFilter(std::span<const double> prior, std::size_t n, double scale, double common)
    : n_(n) {
    if (n == 0 || prior.size() / n != n || prior.size() % n != 0)
        throw std::invalid_argument("prior must have n * n entries");
    prior_.assign(prior.begin(), prior.end());
    for (const double each : prior_) variance_.push_back(scale * each + common);
    value_.resize(n);
    row_.resize(n);
}

double KalmanFilter::at(std::size_t i, std::size_t j) const {
    if (i >= n_ || j >= n_) throw std::out_of_range("entries must be smaller than the size");
    return variance_[i * n_ + j];
}

double KalmanFilter::difference_variance(std::size_t i, std::size_t j) const {
    return at(i, i) - 2.0 * at(i, j) + at(j, j);
}

double KalmanFilter::observe(std::size_t i, double measured, double noise_variance) {
    const double total = variance(i) + noise_variance;
    const double innovation = measured - value_.at(i);
    std::copy_n(variance_.begin() + static_cast<std::ptrdiff_t>(i * n_), n_, row_.begin());
    for (std::size_t j = 0; j < n_; ++j) {
        const double gain = row_[j] / total;
        value_[j] += gain * innovation;
        for (std::size_t k = 0; k < n_; ++k) variance_[j * n_ + k] -= gain * row_[k];
    }
    return row_[i] / total * innovation;
}

double KalmanFilter::observe_robustly(std::size_t i, double measured, double scatter) {
    if (!(scatter > 0.0)) throw std::invalid_argument("scatter must be positive");
    const double innovation = measured - value_.at(i);
    // checked first: one such measurement would leave no number in the estimate
    if (!std::isfinite(innovation * innovation))
        throw std::invalid_argument("measured must be a finite number whose distance has a finite square");
    const double noise = scatter * scatter;
    const double distance = std::abs(innovation) / (kOutlier * scatter);
    int& outliers = outliers_[i == 0 ? 0 : 1];
    if (distance <= 1.0) {
        outliers = 0;
        return observe(i, measured, noise);
    }
    if (std::abs(innovation) <= kOutlier * std::sqrt(variance(i) + noise)) {
        outliers = 0;
    } else {
        const int side = innovation > 0.0 ? 1 : -1;
        outliers = outliers * side > 0 ? outliers + side : side;
        if (std::abs(outliers) >= kOutliersOfAChange) {
            outliers = 0;
            // All entries may have changed alike, by as much as this one. The reset to the prior bounds the
            // covariance however often this happens.
            reset(innovation * innovation);
            return observe(i, measured, noise);
        }
    }
    return observe(i, measured, (distance * scatter) * (distance * scatter));
}

void KalmanFilter::forget(double share) {
    for (std::size_t k = 0; k < variance_.size(); ++k) variance_[k] += share * (prior_[k] - variance_[k]);
}

void KalmanFilter::reset(double common) {
    double now = 0.0;
    double before = 0.0;
    for (std::size_t i = 0; i < n_; ++i) {
        now += at(i, i);
        before += prior_[i * n_ + i];
    }
    if (now < before) variance_ = prior_;
    for (double& each : variance_) each += common;
}

}  // namespace suffixsvc
