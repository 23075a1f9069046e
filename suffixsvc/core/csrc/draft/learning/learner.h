// Online calibration of a namespace's evidence. Three stages, as in the PAQ family of compressors (Mahoney
// 2005), applied to drafts:
//
//   1 features   adaptive counters: how often a candidate with such evidence was right
//   2 mixers     three logistic mixers weight the features; each selects its weights by another part of the
//                context: which contexts exist, recent success, the last token
//   3 final      one small mixer combines the three by depth and rank in the draft, since the maximum of many
//                estimates, several steps ahead, is biased upwards
//
// It also records the tokens gained per unit of target cost, by the cost of drafted tokens: the initial value
// for a session without a history.
//
// Memory: the tables take a quarter of a megabyte, and most namespaces start from the same ones. A learner
// reads the shared start tables until something is learned, loaded or generalised; then it copies them.
//
// Threads: every number is a relaxed atomic. Sessions of one namespace update the tables concurrently; an
// update that is lost to a race does not matter, and readers never wait. The copy is made once, under a mutex
// that readers do not lock; they use the shared tables until the copy is published.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sync/instrumented_mutex.h"

namespace suffixsvc {

inline constexpr int kOrders[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};
inline constexpr int kOrderCount = 10;
inline constexpr int kSources = 2;  // 0: the session, 1: its namespaces

// Inputs of a mixer: contexts by source and order, then the models below, then a constant.
inline constexpr int kMatchInput = kSources * kOrderCount;
inline constexpr int kRecoveryInput = kMatchInput + kSources;
// the candidate; the pair of the last token and the candidate
inline constexpr int kTokenInput = kRecoveryInput + kSources;
inline constexpr int kBias = kTokenInput + 2;
inline constexpr int kInputs = kBias + 1;
inline constexpr float kBiasInput = 0.3f;
inline constexpr std::size_t kPadded = (kInputs + 3) & ~3;  // rounded up to vectors of four

inline constexpr int kMixers = 3;
using Inputs = std::array<float, kPadded>;  // 0 from index kInputs on
using Logits = std::array<float, kMixers>;

float squash(float x);  // 1 / (1 + exp(-x)), x clamped to [-12, 12]

// The tables of a learner. Shared tables are immutable.
class LearnedTables {
  public:
    struct Counter {
        std::atomic<float> right{0.f};
        std::atomic<float> seen{0.f};
    };

    // Counters of features are halved above this limit, so that old observations decay.
    static constexpr float kFeatureLimit = 200.f;
    static constexpr float kMaxGained = 1e9f;    // of the counters of gains
    static constexpr float kWeightLimit = 20.f;  // of the magnitude of a loaded or merged weight

    LearnedTables();  // initial values
    LearnedTables(const LearnedTables& other);
    LearnedTables& operator=(const LearnedTables&) = delete;
    // Parses the result of Learner::save(); null if the bytes are not of this version.
    static std::shared_ptr<LearnedTables> parse(std::string_view bytes);

    std::string save() const;
    bool load(std::string_view bytes);
    void generalise();

    std::vector<Counter> features;
    std::vector<Counter> gains;               // right: tokens gained, seen: cost
    std::vector<std::atomic<float>> weights;  // indexed by set * kInputs + input
    std::vector<std::atomic<float>> final;    // indexed by set * (kMixers + 1) + mixer, the last one a bias
};

class Learner {
  public:
    // Starts from these tables; null: from initial values.
    explicit Learner(std::shared_ptr<const LearnedTables> start = nullptr);
    Learner(const Learner&) = delete;
    Learner& operator=(const Learner&) = delete;

    // ---- 1 features ------------------------------------------------------------------------------
    // The evidence of a context with `total` votes for a candidate: present with some of the votes, and the
    // newest follower or not; or absent.
    class ContextFeature {
      public:
        static constexpr std::uint32_t kSupportBuckets = 8;  // absent, then log2 of the votes, at most 6
        static constexpr std::uint32_t kShareBuckets = 10;   // eighths of the total; 9: all votes
        // features of one source and order
        static constexpr std::uint32_t kCount = 2 * kSupportBuckets * kShareBuckets;

        ContextFeature() = default;
        ContextFeature(int source, int order, std::uint32_t total);
        std::uint32_t absent() const { return first_ + log2_bucket(total_); }
        std::uint32_t present(std::uint32_t votes, bool newest) const {
            const std::uint32_t support = 1 + log2_bucket(votes);
            const std::uint32_t share =
                votes >= total_
                    ? 9
                    : std::min(7u, static_cast<std::uint32_t>(static_cast<float>(votes) * eighths_));
            return first_ + ((newest ? kSupportBuckets : 0) + support) * kShareBuckets + share;
        }

      private:
        static std::uint32_t log2_bucket(std::uint32_t x) {
            return std::min<std::uint32_t>(6, static_cast<std::uint32_t>(std::bit_width(x)) - 1);
        }

        std::uint32_t first_ = 0;
        std::uint32_t total_ = 1;
        float eighths_ = 8.f;  // eighths of the total per vote
    };
    // Whether the last follower of the longest match agrees with the candidate.
    static std::uint32_t match_feature(int source, std::uint32_t match_len, bool agrees);
    // The same for a match that is continued after tokens that differed.
    static std::uint32_t recovery_feature(int source, std::uint32_t misses, std::uint32_t hits, bool agrees);
    // which = 0: hash of the candidate and the length of its context; 1: of the last token and the candidate.
    static std::uint32_t token_feature(int which, std::uint32_t x);
    // Counts of right and wrong, with the prior probability added as two earlier observations.
    std::pair<float, float> odds(std::uint32_t feature, float prior) const {
        const Counter& c = tables().features[feature];
        const float right = c.right.load(std::memory_order_relaxed);
        const float seen = c.seen.load(std::memory_order_relaxed);
        // Another thread may have halved one of the two meanwhile.
        return {right + 2.f * prior, std::max(0.f, seen - right) + 2.f * (1.f - prior)};
    }
    void learn(std::uint32_t feature, bool right);

    // ---- 2 mixers: sets of weights ---------------------------------------------------------------
    static std::uint32_t contexts_set(int deepest_session, int deepest_namespace, bool match_session,
                                      bool match_namespace);
    // `history`: bit i states whether the best candidate was right i tokens ago.
    static std::uint32_t history_set(std::uint32_t history, std::uint32_t match_len, int agreement);
    static std::uint32_t token_set(std::uint32_t last);
    // The current weights of a set.
    void weights(std::uint32_t set, Inputs& out) const;
    static float mix(const Inputs& weights, const Inputs& inputs);  // returns a logit
    void learn_mix(std::uint32_t set, const Inputs& inputs, float logit, bool right);

    // ---- 3 final ---------------------------------------------------------------------------------
    static std::uint32_t final_set(std::uint32_t depth, std::uint32_t rank, std::uint32_t history);
    float final(std::uint32_t set, const Logits& logits) const;  // returns a probability
    void learn_final(std::uint32_t set, const Logits& logits, float predicted, bool right);

    // ---- gain: (tokens, cost) of steps whose drafted tokens cost at least `slope` each --------------
    static std::uint32_t cost_class(double slope);
    std::pair<double, double> gain(std::uint32_t cost_class) const;  // (1, 1) without observations
    void learn_gain(std::uint32_t cost_class, double tokens, double cost);
    // Adds tokens to the step that was learned last.
    void learn_more_gain(std::uint32_t cost_class, double tokens);
    static constexpr double kGainDecay = 0.998;  // per step

    // Little-endian floats after a short header; load returns false, without a change, if the bytes are not
    // of this version.
    std::string save() const;
    bool load(std::string_view bytes);
    // Reduces the tables to what other namespaces can start from: without everything that depends on a
    // tokenizer or on costs, with counters that new evidence soon outweighs, and with half of what the mixers
    // learned. To be called once: a second call halves again.
    void generalise();
    // What was learned since save() returned `base`, as bytes: at most as many as save() returns, and none if
    // nothing was learned. Throws std::invalid_argument if `base` is not of this version.
    std::string difference(std::string_view base) const;
    // Adds what another learner learned (draft/learning/learned_difference.h). Returns false, without a
    // change, if the bytes are not a difference of this version. Merging a difference again counts it again:
    // its counts are observations. Merges of one learner are to be serialised; else some of their updates are
    // lost.
    bool merge(std::string_view difference);
    // Whether anything was learned or merged since construction.
    bool changed() const { return changed_.load(std::memory_order_relaxed); }
    // Bytes owned: 0 until something is learned or loaded.
    std::size_t own_bytes() const;

  private:
    using Counter = LearnedTables::Counter;

    const LearnedTables& tables() const { return *read_.load(std::memory_order_acquire); }
    // The tables to be written to.
    LearnedTables& own() {
        LearnedTables* tables = own_.load(std::memory_order_acquire);
        if (tables == nullptr) [[unlikely]]
            tables = &copy_tables();
        return *tables;
    }
    // Cold: else each of its many callers would save registers for the one call that copies.
    [[gnu::cold]] LearnedTables& copy_tables();

    std::atomic<bool> changed_{false};
    std::shared_ptr<const LearnedTables> start_;
    InstrumentedMutex<LockKind::learner> copy_mutex_;  // guards copy_
    std::unique_ptr<LearnedTables> copy_;
    std::atomic<LearnedTables*> own_{nullptr};  // copy_ once it exists, otherwise null
    std::atomic<const LearnedTables*> read_;    // copy_ or start_
};

}  // namespace suffixsvc
