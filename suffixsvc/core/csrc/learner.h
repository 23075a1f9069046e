// What a namespace has learned about its own evidence. Three stages, as in the PAQ family of compressors
// (Mahoney 2005), applied to drafts:
//
//   1 features   adaptive counters: how often a candidate with such evidence was right
//   2 mixers     three logistic mixers weigh the features against each other, each with weights picked by
//                another side of the situation: which contexts exist, how well things went lately, the last
//                token
//   3 final      one small mixer weighs the three by depth and rank in the draft: taking the best of many
//                estimates, several steps ahead, is optimistic
//
// And what a unit of target cost has bought so far, by what drafted tokens cost: where a session that has
// seen nothing starts from.
//
// Memory: the numbers take a quarter of a megabyte, and most namespaces start from the same ones. A learner
// reads those that it was started from until something is learned, loaded or generalised; then it copies
// them.
//
// Threads: every number is a relaxed atomic. Sessions of one namespace learn into it together; an
// update lost to a race costs nothing that matters, and no reader ever waits. The copy is made once, under a
// mutex that no reader takes; readers go on with the shared numbers until it is published.
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
#include <utility>
#include <vector>

#include "holds.h"

namespace suffixsvc {

inline constexpr int kOrders[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};
inline constexpr int kOrderCount = 10;
inline constexpr int kSources = 2;  // 0: the session itself, 1: its namespaces

// Inputs of a mixer: contexts by source and order, then the models below, then a constant.
inline constexpr int kMatchInput = kSources * kOrderCount;
inline constexpr int kRecoveryInput = kMatchInput + kSources;
inline constexpr int kTokenInput = kRecoveryInput + kSources;  // the candidate; the last token and it
inline constexpr int kBias = kTokenInput + 2;
inline constexpr int kInputs = kBias + 1;
inline constexpr float kBiasInput = 0.3f;
inline constexpr std::size_t kPadded = (kInputs + 3) & ~3;  // whole vectors of four

inline constexpr int kMixers = 3;
using Inputs = std::array<float, kPadded>;  // 0 behind kInputs
using Logits = std::array<float, kMixers>;

float squash(float x);  // 1 / (1 + exp(-x)), x clamped to [-12, 12]

// What a learner has learned, as numbers. Shared ones are never changed.
class LearnedTables {
  public:
    struct Counter {
        std::atomic<float> right{0.f};
        std::atomic<float> seen{0.f};
    };

    LearnedTables();  // nothing
    LearnedTables(const LearnedTables& other);
    LearnedTables& operator=(const LearnedTables&) = delete;
    // Those of Learner::save(); null where the bytes are not of this version.
    static std::shared_ptr<const LearnedTables> parse(const std::string& bytes);

    std::string save() const;
    bool load(const std::string& bytes);
    void generalise();

    std::vector<Counter> features;
    std::vector<Counter> gains;               // right: tokens, seen: cost
    std::vector<std::atomic<float>> weights;  // set * kInputs + input
    std::vector<std::atomic<float>> final;    // set * (kMixers + 1) + mixer, the last one a bias
};

class Learner {
  public:
    // Starts from these; null: from nothing.
    explicit Learner(std::shared_ptr<const LearnedTables> start = nullptr);
    Learner(const Learner&) = delete;
    Learner& operator=(const Learner&) = delete;

    // ---- 1 features ------------------------------------------------------------------------------
    // A candidate in a context with `total` votes: present with some of them, the newest follower or not; or
    // absent.
    class ContextFeature {
      public:
        static constexpr std::uint32_t kSupportBuckets = 8;  // absent, then log2 of the votes up to 6
        static constexpr std::uint32_t kShareBuckets = 10;   // eighths of the total, 9 = all of it
        static constexpr std::uint32_t kCount = 2 * kSupportBuckets * kShareBuckets;  // of a source and order

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
        float eighths_ = 8.f;  // of the total, in one vote
    };
    // What followed the longest match last agrees with the candidate, or not.
    static std::uint32_t match_feature(int source, std::uint32_t match_len, bool agrees);
    // The same for a match that is followed although tokens differed.
    static std::uint32_t recovery_feature(int source, std::uint32_t misses, std::uint32_t hits, bool agrees);
    // 0: the candidate and how long a context knows it; 1: the last token and the candidate. Hashed.
    static std::uint32_t token_feature(int which, std::uint32_t x);
    // How often it was right and wrong, as if the prior probability had been seen twice before.
    std::pair<float, float> odds(std::uint32_t feature, float prior) const {
        const Counter& c = tables().features[feature];
        const float right = c.right.load(std::memory_order_relaxed);
        const float seen = c.seen.load(std::memory_order_relaxed);
        // Another thread may have halved one of the two by now.
        return {right + 2.f * prior, std::max(0.f, seen - right) + 2.f * (1.f - prior)};
    }
    void learn(std::uint32_t feature, bool right);

    // ---- 2 mixers: sets of weights ---------------------------------------------------------------
    static std::uint32_t contexts_set(int deepest_session, int deepest_namespace, bool match_session,
                                      bool match_namespace);
    // `history`: bit i is whether the best candidate was right i tokens ago.
    static std::uint32_t history_set(std::uint32_t history, std::uint32_t match_len, int agreement);
    static std::uint32_t token_set(std::uint32_t last);
    // The weights of a set as they are now.
    void weights(std::uint32_t set, Inputs& out) const;
    static float mix(const Inputs& weights, const Inputs& inputs);  // a logit
    void learn_mix(std::uint32_t set, const Inputs& inputs, float logit, bool right);

    // ---- 3 final ---------------------------------------------------------------------------------
    static std::uint32_t final_set(std::uint32_t depth, std::uint32_t rank, std::uint32_t history);
    float final(std::uint32_t set, const Logits& logits) const;  // a probability
    void learn_final(std::uint32_t set, const Logits& logits, float predicted, bool right);

    // ---- gain: (tokens, cost) of steps whose drafted tokens cost at least `slope` each --------------
    static std::uint32_t cost_class(double slope);
    std::pair<double, double> gain(std::uint32_t cost_class) const;  // (1, 1) where nothing is known
    void learn_gain(std::uint32_t cost_class, double tokens, double cost);
    // More tokens of the step that was learned last.
    void learn_more_gain(std::uint32_t cost_class, double tokens);
    static constexpr double kGainDecay = 0.998;  // per step

    // Little-endian floats behind a small header; load returns false and changes nothing where the
    // bytes are not of this version.
    std::string save() const;
    bool load(const std::string& bytes);
    // What of this is worth starting other namespaces with: nothing that depends on a tokenizer or on
    // prices, counters that new evidence soon outweighs, half of what the mixers learned. Called once: a
    // second call halves again.
    void generalise();
    // Whether anything was learned since this was made or loaded.
    bool changed() const { return changed_.load(std::memory_order_relaxed); }
    // Memory of its own: 0 until something is learned or loaded.
    std::size_t own_bytes() const;

  private:
    using Counter = LearnedTables::Counter;

    const LearnedTables& tables() const { return *read_.load(std::memory_order_acquire); }
    // To be written to.
    LearnedTables& own() {
        LearnedTables* tables = own_.load(std::memory_order_acquire);
        return tables != nullptr ? *tables : make_own();
    }
    LearnedTables& make_own();

    std::atomic<bool> changed_{false};
    std::shared_ptr<const LearnedTables> start_;
    HeldMutex<LockKind::learner> making_;  // guards made_
    std::unique_ptr<LearnedTables> made_;
    std::atomic<LearnedTables*> own_{nullptr};  // made_, once it is there
    std::atomic<const LearnedTables*> read_;    // that, or start_
};

}  // namespace suffixsvc
