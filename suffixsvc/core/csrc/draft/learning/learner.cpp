#include "draft/learning/learner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "draft/learning/floats.h"
#include "draft/learning/learned_difference.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kMatchBuckets = 24;
constexpr std::uint32_t kMissBuckets = 8, kHitBuckets = 8;
constexpr std::uint32_t kTokenBits = 13;

// First index of each kind of feature.
constexpr std::uint32_t kContextFeatures = kSources * kOrderCount * Learner::ContextFeature::kCount;
constexpr std::uint32_t kMatchStart = kContextFeatures;
constexpr std::uint32_t kRecoveryStart = kMatchStart + kSources * kMatchBuckets * 2;
constexpr std::uint32_t kTokenStart = kRecoveryStart + kSources * kMissBuckets * kHitBuckets * 2;
constexpr std::uint32_t kFeatures = kTokenStart + (2u << kTokenBits);

// First weight set of each mixer.
constexpr std::uint32_t kContextSets = (kOrderCount + 1) * (kOrderCount + 1) * 4;
constexpr std::uint32_t kHistoryStart = kContextSets;
constexpr std::uint32_t kTokenSetStart = kHistoryStart + 9 * 5 * 3;
constexpr std::uint32_t kTokenSetBits = 8;
constexpr std::uint32_t kSets = kTokenSetStart + (1u << kTokenSetBits);
constexpr std::uint32_t kFinalSets = 4 * 3 * 4;
constexpr std::uint32_t kFinalWeights = kMixers + 1;
constexpr std::uint32_t kCostClasses = 24;

constexpr float kStartWeight = 0.2f;
constexpr float kRate = 0.032f;
constexpr float kFinalRate = 0.008f;  // at 0.004 drafts were 0.2 % better, and calibration a third worse
constexpr float kSoftLimit = 8.f;     // limit of the counters that other namespaces start with
constexpr float kMaxLogit = 9.2f;
constexpr char kMagic[8] = {'S', 'F', 'X', 'L', 'R', 'N', '0', '2'};

std::uint32_t match_bucket(std::uint32_t n) {
    if (n < 16) return n;
    return 16 + (n >= 20) + (n >= 24) + (n >= 32) + (n >= 48) + (n >= 64) + (n >= 128) + (n >= 256);
}

std::uint32_t hash_bits(std::uint32_t x, std::uint32_t bits) {
    x *= 0x9E3779B1u;
    x ^= x >> 15;
    return x & ((1u << bits) - 1);
}

float get(const std::atomic<float>& x) { return x.load(std::memory_order_relaxed); }
void put(std::atomic<float>& x, float v) { x.store(v, std::memory_order_relaxed); }

}  // namespace

float squash(float x) { return 1.f / (1.f + std::exp(-std::clamp(x, -12.f, 12.f))); }

// ------------------------------------------------------------------------------------------- tables

LearnedTables::LearnedTables()
    : features(kFeatures), gains(kCostClasses), weights(kSets * kInputs), final(kFinalSets * kFinalWeights) {
    for (std::size_t i = 0; i < weights.size(); ++i)
        put(weights[i], i % kInputs == kBias ? 0.f : kStartWeight);
    for (std::size_t i = 0; i < final.size(); ++i)
        put(final[i], i % kFinalWeights == kMixers ? 0.f : 1.f / kMixers);
}

LearnedTables::LearnedTables(const LearnedTables& other) : LearnedTables() {
    const auto copy = [](const std::vector<Counter>& from, std::vector<Counter>& to) {
        for (std::size_t i = 0; i < from.size(); ++i) {
            put(to[i].right, get(from[i].right));
            put(to[i].seen, get(from[i].seen));
        }
    };
    copy(other.features, features);
    copy(other.gains, gains);
    for (std::size_t i = 0; i < weights.size(); ++i) put(weights[i], get(other.weights[i]));
    for (std::size_t i = 0; i < final.size(); ++i) put(final[i], get(other.final[i]));
}

std::shared_ptr<LearnedTables> LearnedTables::parse(std::string_view bytes) {
    auto tables = std::make_shared<LearnedTables>();
    return tables->load(bytes) ? tables : nullptr;
}

Learner::Learner(std::shared_ptr<const LearnedTables> start) : start_(std::move(start)) {
    static const auto nothing = std::make_shared<const LearnedTables>();
    if (!start_) start_ = nothing;
    read_.store(start_.get(), std::memory_order_relaxed);
}

LearnedTables& Learner::copy_tables() {
    const std::scoped_lock lock(copy_mutex_);
    if (!copy_) {
        copy_ = std::make_unique<LearnedTables>(*start_);
        own_.store(copy_.get(), std::memory_order_release);
        read_.store(copy_.get(), std::memory_order_release);
    }
    return *copy_;
}

std::size_t Learner::own_bytes() const {
    if (own_.load(std::memory_order_relaxed) == nullptr) return 0;
    const LearnedTables& t = tables();
    return (t.features.size() + t.gains.size()) * sizeof(Counter) +
           (t.weights.size() + t.final.size()) * sizeof(float);
}

// ------------------------------------------------------------------------------------------ features

Learner::ContextFeature::ContextFeature(int source, int order, std::uint32_t total)
    : first_((static_cast<std::uint32_t>(source) * kOrderCount + static_cast<std::uint32_t>(order)) * kCount),
      total_(std::max(1u, total)),
      eighths_(8.000004f / static_cast<float>(total_)) {
}  // slightly more than 8: whole eighths must not be rounded down

std::uint32_t Learner::match_feature(int source, std::uint32_t match_len, bool agrees) {
    return kMatchStart + (static_cast<std::uint32_t>(source) * kMatchBuckets + match_bucket(match_len)) * 2 +
           agrees;
}

std::uint32_t Learner::recovery_feature(int source, std::uint32_t misses, std::uint32_t hits, bool agrees) {
    const std::uint32_t hit = hits < 4 ? hits : 4 + (hits >= 6) + (hits >= 10) + (hits >= 20);
    const std::uint32_t row =
        static_cast<std::uint32_t>(source) * kMissBuckets + std::min(misses, kMissBuckets - 1);
    return kRecoveryStart + (row * kHitBuckets + hit) * 2 + agrees;
}

std::uint32_t Learner::token_feature(int which, std::uint32_t x) {
    return kTokenStart + (static_cast<std::uint32_t>(which) << kTokenBits) + hash_bits(x, kTokenBits);
}

void Learner::learn(std::uint32_t feature, bool right) {
    Counter& c = own().features[feature];
    float r = get(c.right) + (right ? 1.f : 0.f);
    float s = get(c.seen) + 1.f;
    if (s > LearnedTables::kFeatureLimit) {
        r *= 0.5f;
        s *= 0.5f;
    }
    put(c.right, r);
    put(c.seen, s);
    if (!changed()) changed_.store(true, std::memory_order_relaxed);
}

// ------------------------------------------------------------------------------------------- mixers

std::uint32_t Learner::contexts_set(int deepest_session, int deepest_namespace, bool match_session,
                                    bool match_namespace) {
    const int contexts = (deepest_session + 1) * (kOrderCount + 1) + deepest_namespace + 1;
    return static_cast<std::uint32_t>(contexts * 4 + match_session * 2 + match_namespace);
}

std::uint32_t Learner::history_set(std::uint32_t history, std::uint32_t match_len, int agreement) {
    const auto right = static_cast<std::uint32_t>(std::popcount(history & 0xFFu));
    const std::uint32_t length =
        match_len == 0 ? 0 : 1 + (match_len >= 8) + (match_len >= 16) + (match_len >= 32);
    return kHistoryStart + (right * 5 + length) * 3 + static_cast<std::uint32_t>(agreement);
}

std::uint32_t Learner::token_set(std::uint32_t last) {
    return kTokenSetStart + hash_bits(last, kTokenSetBits);
}

void Learner::weights(std::uint32_t set, Inputs& out) const {
    const std::atomic<float>* w = &tables().weights[std::size_t{set} * kInputs];
    for (std::size_t i = 0; i < kInputs; ++i) out[i] = get(w[i]);
    std::fill(out.begin() + kInputs, out.end(), 0.f);
}

float Learner::mix(const Inputs& weights, const Inputs& inputs) {
    Float4 sums{};
    for (std::size_t i = 0; i < kPadded; i += 4) sums += load4(&weights[i]) * load4(&inputs[i]);
    return std::clamp(sums[0] + sums[1] + (sums[2] + sums[3]), -kMaxLogit, kMaxLogit);
}

void Learner::learn_mix(std::uint32_t set, const Inputs& inputs, float logit, bool right) {
    std::atomic<float>* w = &own().weights[std::size_t{set} * kInputs];
    const float step = ((right ? 1.f : 0.f) - squash(logit)) * kRate;
    for (int i = 0; i < kInputs; ++i) {
        const float x = inputs[static_cast<std::size_t>(i)];
        if (x != 0.f) put(w[i], get(w[i]) + step * x);
    }
}

std::uint32_t Learner::final_set(std::uint32_t depth, std::uint32_t rank, std::uint32_t history) {
    const std::uint32_t d = depth == 0 ? 0 : 1 + (depth >= 3) + (depth >= 8);
    const int right = std::popcount(history & 0xFFFFu);
    const auto h = static_cast<std::uint32_t>((right >= 6) + (right >= 10) + (right >= 14));
    return (d * 3 + std::min(rank, 2u)) * 4 + h;
}

float Learner::final(std::uint32_t set, const Logits& logits) const {
    const std::atomic<float>* w = &tables().final[std::size_t{set} * kFinalWeights];
    float sum = get(w[kMixers]);
    for (std::size_t i = 0; i < kMixers; ++i) sum += get(w[i]) * logits[i];
    return squash(sum);
}

void Learner::learn_final(std::uint32_t set, const Logits& logits, float predicted, bool right) {
    std::atomic<float>* w = &own().final[std::size_t{set} * kFinalWeights];
    const float step = ((right ? 1.f : 0.f) - predicted) * kFinalRate;
    for (std::size_t i = 0; i < kMixers; ++i) put(w[i], get(w[i]) + step * logits[i]);
    put(w[kMixers], get(w[kMixers]) + 4.f * step);
}

// --------------------------------------------------------------------------------------------- gain

std::uint32_t Learner::cost_class(double slope) {
    if (!(slope > 0.0)) return 0;
    const double half_octaves = 2.0 * std::log2(slope) + 18.0;
    return static_cast<std::uint32_t>(std::clamp(half_octaves, 0.0, kCostClasses - 1.0));
}

std::pair<double, double> Learner::gain(std::uint32_t cost_class) const {
    const Counter& c = tables().gains[cost_class];
    const double tokens = get(c.right), cost = get(c.seen);
    if (!(cost > 0.0)) return {1.0, 1.0};
    return {tokens, cost};
}

void Learner::learn_gain(std::uint32_t cost_class, double tokens, double cost) {
    Counter& c = own().gains[cost_class];
    put(c.right, std::min(LearnedTables::kMaxGained, static_cast<float>(get(c.right) * kGainDecay + tokens)));
    put(c.seen, std::min(LearnedTables::kMaxGained, static_cast<float>(get(c.seen) * kGainDecay + cost)));
}

void Learner::learn_more_gain(std::uint32_t cost_class, double tokens) {
    Counter& c = own().gains[cost_class];
    put(c.right, std::min(LearnedTables::kMaxGained, static_cast<float>(get(c.right) + tokens)));
}

// -------------------------------------------------------------------------------------------- bytes

std::string LearnedTables::save() const {
    std::vector<float> all;
    all.reserve(2 * features.size() + 2 * gains.size() + weights.size() + final.size());
    for (const auto* table : {&features, &gains})
        for (const Counter& c : *table) {
            all.push_back(get(c.right));
            all.push_back(get(c.seen));
        }
    for (const auto* table : {&weights, &final})
        for (const auto& w : *table) all.push_back(get(w));
    std::string out(kMagic, sizeof kMagic);
    out.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(float));
    return out;
}

bool LearnedTables::load(std::string_view bytes) {
    const std::size_t count = 2 * features.size() + 2 * gains.size() + weights.size() + final.size();
    if (bytes.size() != sizeof kMagic + count * sizeof(float) ||
        std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
        return false;
    std::vector<float> all(count);
    std::memcpy(all.data(), bytes.data() + sizeof kMagic, count * sizeof(float));
    for (float x : all)
        if (!std::isfinite(x)) return false;
    const float* x = all.data();
    for (Counter& c : features) {
        const float right = *x++, seen = *x++;
        put(c.seen, std::clamp(seen, 0.f, kFeatureLimit));
        put(c.right, std::clamp(right, 0.f, get(c.seen)));
    }
    for (Counter& c : gains) {
        const float tokens = *x++, cost = *x++;
        put(c.seen, std::clamp(cost, 0.f, kMaxGained));
        put(c.right, std::clamp(tokens, 0.f, kMaxGained));
    }
    for (auto* table : {&weights, &final})
        for (auto& w : *table) put(w, std::clamp(*x++, -kWeightLimit, kWeightLimit));
    return true;
}

void LearnedTables::generalise() {
    for (std::size_t i = 0; i < features.size(); ++i) {
        Counter& c = features[i];
        const float seen = i >= kTokenStart ? 0.f : std::min(get(c.seen), kSoftLimit);
        put(c.right, seen > 0.f ? get(c.right) * seen / get(c.seen) : 0.f);
        put(c.seen, seen);
    }
    for (Counter& c : gains) {
        put(c.right, 0.f);
        put(c.seen, 0.f);
    }
    // All sets of the last token become the mean of those that were used.
    std::array<double, kInputs> mean{};
    double used = 0.0;
    for (std::uint32_t set = kTokenSetStart; set < kSets; ++set) {
        const std::atomic<float>* w = &weights[std::size_t{set} * kInputs];
        if (get(w[kBias]) == 0.f) continue;
        used += 1.0;
        for (std::size_t i = 0; i < kInputs; ++i) mean[i] += static_cast<double>(get(w[i]));
    }
    if (used > 0.0)
        for (std::uint32_t set = kTokenSetStart; set < kSets; ++set)
            for (std::size_t i = 0; i < kInputs; ++i)
                put(weights[std::size_t{set} * kInputs + i], static_cast<float>(mean[i] / used));
    // Half of what the mixers learned: namespaces that differ from the training data took too long to
    // unlearn all of it. (Leave-one-out over twelve logs: gains of 0.1, 0.2 and 0.3 % at costs of 0.01, 0.05
    // and 0.2.)
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const float start = i % kInputs == kBias ? 0.f : kStartWeight;
        put(weights[i], start + 0.5f * (get(weights[i]) - start));
    }
    for (std::size_t i = 0; i < final.size(); ++i)
        put(final[i], i % kFinalWeights == kMixers ? 0.f : 1.f / kMixers);
}

std::string Learner::save() const { return tables().save(); }

bool Learner::load(std::string_view bytes) {
    // Validated before the tables are copied, and loaded in place, since readers may hold references to them.
    return LearnedTables::parse(bytes) != nullptr && own().load(bytes);
}

std::string Learner::difference(std::string_view base) const {
    const auto parsed = LearnedTables::parse(base);
    if (!parsed)
        throw std::invalid_argument("base must be a result of Learner.save() of this version; got " +
                                    std::to_string(base.size()) + " other bytes");
    const auto found = LearnedDifference::between(*parsed, tables());
    return found.empty() ? std::string() : found.pack(*parsed);
}

bool Learner::merge(std::string_view difference) {
    // Validated before the tables are copied.
    const auto parsed = LearnedDifference::parse(difference, tables());
    if (!parsed) return false;
    parsed->merge_into(own());
    changed_.store(true, std::memory_order_relaxed);
    return true;
}

void Learner::generalise() { own().generalise(); }

}  // namespace suffixsvc
