#include "learner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace suffixsvc {

namespace {

constexpr std::uint32_t kSupportBuckets = 8;  // absent, then log2 of the votes up to 6
constexpr std::uint32_t kShareBuckets = 10;   // eighths of the total, 9 = all of it
constexpr std::uint32_t kMatchBuckets = 24;
constexpr std::uint32_t kContextFeatures = kSources * kOrderCount * kSupportBuckets * kShareBuckets;
constexpr std::uint32_t kFeatures = kContextFeatures + kSources * kMatchBuckets * 2;
constexpr std::uint32_t kDepths = 8, kLevels = 23, kRanks = 3, kLengths = 3;
constexpr std::uint32_t kCorrections = kDepths * kLevels * kRanks * kLengths;
constexpr std::uint32_t kMixers = (kOrderCount + 1) * (kOrderCount + 1) * 4;
constexpr float kStartWeight = 0.3f;
constexpr float kRate = 0.015f;
constexpr char kMagic[8] = {'S', 'F', 'X', 'L', 'R', 'N', '0', '1'};

std::uint32_t log2_bucket(std::uint32_t x) { return std::min<std::uint32_t>(6, std::bit_width(x) - 1); }

std::uint32_t match_bucket(std::uint32_t n) {
    if (n < 16) return n;
    return 16 + (n >= 20) + (n >= 24) + (n >= 32) + (n >= 48) + (n >= 64) + (n >= 128) + (n >= 256);
}

float get(const std::atomic<float>& x) { return x.load(std::memory_order_relaxed); }
void put(std::atomic<float>& x, float v) { x.store(v, std::memory_order_relaxed); }

}  // namespace

float stretch(float p) {
    p = std::clamp(p, 1e-4f, 1.f - 1e-4f);
    return std::log(p / (1.f - p));
}

float squash(float x) { return 1.f / (1.f + std::exp(-std::clamp(x, -12.f, 12.f))); }

Learner::Learner() : features_(kFeatures), corrections_(kCorrections), weights_(kMixers * kInputs) {
    for (std::size_t i = 0; i < weights_.size(); ++i)
        put(weights_[i], i % kInputs == kBias ? 0.f : kStartWeight);
}

void Learner::Counter::add(bool hit, float limit) {
    float r = get(right) + (hit ? 1.f : 0.f);
    float s = get(seen) + 1.f;
    if (s > limit) {  // forget slowly: what was true long ago counts half
        r *= 0.5f;
        s *= 0.5f;
    }
    put(right, r);
    put(seen, s);
}

std::uint32_t Learner::context_feature(int source, int order, std::uint32_t votes, std::uint32_t total) {
    std::uint32_t support, share;
    if (votes == 0) {
        support = 0;
        share = log2_bucket(std::max(1u, total));
    } else {
        support = 1 + log2_bucket(votes);
        share = votes >= total ? 9 : votes * 8 / total;
    }
    return ((static_cast<std::uint32_t>(source) * kOrderCount + static_cast<std::uint32_t>(order)) *
                kSupportBuckets +
            support) *
               kShareBuckets +
           share;
}

std::uint32_t Learner::match_feature(int source, std::uint32_t match_len, bool agrees) {
    return kContextFeatures +
           (static_cast<std::uint32_t>(source) * kMatchBuckets + match_bucket(match_len)) * 2 + agrees;
}

std::uint32_t Learner::correction_key(std::uint32_t depth, float p, std::uint32_t rank,
                                      std::uint32_t match_len) {
    const std::uint32_t d = depth < 4 ? depth : 4 + (depth > 8) + (depth > 16) + (depth > 32);
    const auto level = static_cast<std::uint32_t>(std::clamp(std::lround(stretch(p) * 1.3f), -10L, 12L) + 10);
    const std::uint32_t length = (match_len >= 16) + (match_len >= 32);
    return ((d * kLevels + level) * kRanks + std::min(rank, 2u)) * kLengths + length;
}

std::uint32_t Learner::mixer_key(int deepest_session, int deepest_namespace, bool match_session,
                                 bool match_namespace) {
    const int contexts = (deepest_session + 1) * (kOrderCount + 1) + deepest_namespace + 1;
    return static_cast<std::uint32_t>(contexts * 4 + match_session * 2 + match_namespace);
}

float Learner::estimate(std::uint32_t feature, float prior) const {
    const Counter& c = features_[feature];
    return (get(c.right) + 2.f * prior) / (get(c.seen) + 2.f);
}

void Learner::learn(std::uint32_t feature, bool right) {
    features_[feature].add(right, 400.f);
    if (!changed()) changed_.store(true, std::memory_order_relaxed);
}

float Learner::mix(std::uint32_t key, const std::array<float, kInputs>& inputs) const {
    const std::atomic<float>* w = &weights_[std::size_t{key} * kInputs];
    float sum = 0.f;
    for (int i = 0; i < kInputs; ++i) sum += get(w[i]) * inputs[i];
    return squash(sum);
}

void Learner::learn_mix(std::uint32_t key, const std::array<float, kInputs>& inputs, float predicted,
                        bool right) {
    std::atomic<float>* w = &weights_[std::size_t{key} * kInputs];
    const float error = ((right ? 1.f : 0.f) - predicted) * kRate;
    for (int i = 0; i < kInputs; ++i)
        if (inputs[i] != 0.f) put(w[i], get(w[i]) + error * inputs[i]);
}

float Learner::corrected(std::uint32_t key, float p) const {
    const Counter& c = corrections_[key];
    const float prior = p * 0.97f;
    return (get(c.right) + 3.f * prior) / (get(c.seen) + 3.f);
}

void Learner::learn_correction(std::uint32_t key, bool right) { corrections_[key].add(right, 300.f); }

std::string Learner::save() const {
    std::vector<float> all;
    all.reserve(2 * features_.size() + 2 * corrections_.size() + weights_.size());
    for (const auto* table : {&features_, &corrections_})
        for (const Counter& c : *table) {
            all.push_back(get(c.right));
            all.push_back(get(c.seen));
        }
    for (const auto& w : weights_) all.push_back(get(w));
    std::string out(kMagic, sizeof kMagic);
    out.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(float));
    return out;
}

bool Learner::load(const std::string& bytes) {
    const std::size_t count = 2 * features_.size() + 2 * corrections_.size() + weights_.size();
    if (bytes.size() != sizeof kMagic + count * sizeof(float) ||
        std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
        return false;
    std::vector<float> all(count);
    std::memcpy(all.data(), bytes.data() + sizeof kMagic, count * sizeof(float));
    for (float x : all)
        if (!std::isfinite(x)) return false;
    const float* x = all.data();
    for (auto* table : {&features_, &corrections_})
        for (Counter& c : *table) {
            const float right = *x++, seen = *x++;
            put(c.seen, std::clamp(seen, 0.f, 1000.f));
            put(c.right, std::clamp(right, 0.f, get(c.seen)));
        }
    for (auto& w : weights_) put(w, std::clamp(*x++, -20.f, 20.f));
    return true;
}

}  // namespace suffixsvc
