#include "driver/acceptance_table.h"

#include <algorithm>
#include <stdexcept>

namespace suffixsvc {

namespace {

// Upper ends of the buckets of raw probabilities; dense where most drafted tokens lie.
constexpr std::array kProbabilityEdges{0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99};
// First depths of the buckets of depths after the first.
constexpr std::array<std::size_t, 3> kDepthEdges{1, 4, 10};
// Weight of the level above, in labels.
constexpr double kPriorWeight = 4.0;
// Labels after which counts halve.
constexpr double kCap = 128.0;

template <typename Edges>
std::size_t bucket_of(const Edges& edges, typename Edges::value_type value) {
    return static_cast<std::size_t>(std::ranges::upper_bound(edges, value) - edges.begin());
}

void check(double raw) {
    // also refuses NaN
    if (!(raw >= 0.0 && raw <= 1.0)) throw std::invalid_argument("probabilities must be in 0 .. 1");
}

}  // namespace

void AcceptanceTable::Mean::add(double value, double value_weight) {
    total += value;
    weight += value_weight;
    if (weight > kCap) {
        total *= 0.5;
        weight *= 0.5;
    }
}

double AcceptanceTable::Mean::mean(double prior) const {
    return (total + kPriorWeight * prior) / (weight + kPriorWeight);
}

std::vector<double> AcceptanceTable::calibrate(std::span<const double> raw,
                                               std::span<const std::size_t> depths) const {
    if (raw.size() != depths.size()) throw std::invalid_argument("every probability must have a depth");
    static_assert(kProbabilityEdges.size() + 1 == kProbabilities && kDepthEdges.size() + 1 == kDepths);
    const double scale = std::min(1.0, overall_.mean(1.0));
    std::vector<double> found;
    found.reserve(raw.size());
    for (std::size_t i = 0; i < raw.size(); ++i) {
        check(raw[i]);
        const Bucket& bucket = buckets_[bucket_of(kProbabilityEdges, raw[i])];
        const Mean& deep = bucket.at_depth[bucket_of(kDepthEdges, depths[i])];
        found.push_back(deep.mean(bucket.all.mean(raw[i] * scale)));
    }
    return found;
}

void AcceptanceTable::learn(double raw, std::size_t depth, bool hit) {
    check(raw);
    overall_.add(hit, raw);
    // Underestimates earn no credit that later overestimates could use up.
    overall_.total = std::min(overall_.total, overall_.weight + kPriorWeight);
    Bucket& bucket = buckets_[bucket_of(kProbabilityEdges, raw)];
    bucket.all.add(hit, 1.0);
    bucket.at_depth[bucket_of(kDepthEdges, depth)].add(hit, 1.0);
}

void AcceptanceTable::label(std::span<const std::int64_t> drafted, std::span<const double> raw,
                            std::span<const std::int64_t> written, std::size_t first_depth) {
    const std::size_t n = std::min({drafted.size(), raw.size(), written.size()});
    for (std::size_t i = 0; i < n; ++i) {
        const bool hit = drafted[i] == written[i];
        learn(raw[i], first_depth + i, hit);
        if (!hit) return;
    }
}

double AcceptanceTable::acceptance(double prior) const {
    Mean all;
    for (const Bucket& bucket : buckets_) {
        all.total += bucket.all.total;
        all.weight += bucket.all.weight;
    }
    return all.mean(prior);
}

}  // namespace suffixsvc
