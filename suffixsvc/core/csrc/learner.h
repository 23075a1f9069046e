// What a namespace has learned about its own evidence: how often a candidate with given features was
// right (adaptive counters), how to weigh the contexts against each other (a logistic mixer), and how
// far the mixed estimate is off at each depth (a final correction). The scheme is that of the PAQ family
// of compressors (Mahoney 2005), applied to drafts.
//
// Threads: every number is a relaxed atomic. Sessions of one namespace learn into it together; an
// update lost to a race costs nothing that matters, and no reader ever waits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace suffixsvc {

inline constexpr int kOrders[] = {1, 2, 3, 4, 5, 6, 8, 11, 16, 24};
inline constexpr int kOrderCount = 10;
inline constexpr int kSources = 2;  // 0: the session itself, 1: its namespaces
inline constexpr int kInputs = kSources * kOrderCount + kSources + 1;  // contexts, match models, bias
inline constexpr int kBias = kInputs - 1;
inline constexpr float kBiasInput = 0.3f;

float stretch(float p);  // ln(p / (1 - p)), p clamped to [1e-4, 1 - 1e-4]
float squash(float x);   // its inverse, x clamped to [-12, 12]

class Learner {
  public:
    Learner();
    Learner(const Learner&) = delete;
    Learner& operator=(const Learner&) = delete;

    // Feature of a candidate in one context: present with `votes` of `total`, or absent.
    static std::uint32_t context_feature(int source, int order, std::uint32_t votes, std::uint32_t total);
    static std::uint32_t match_feature(int source, std::uint32_t match_len, bool agrees);
    static std::uint32_t correction_key(std::uint32_t depth, float p, std::uint32_t rank,
                                        std::uint32_t match_len);
    static std::uint32_t mixer_key(int deepest_session, int deepest_namespace, bool match_session,
                                   bool match_namespace);

    float estimate(std::uint32_t feature, float prior) const;
    void learn(std::uint32_t feature, bool right);

    float mix(std::uint32_t key, const std::array<float, kInputs>& inputs) const;
    void learn_mix(std::uint32_t key, const std::array<float, kInputs>& inputs, float predicted, bool right);

    float corrected(std::uint32_t key, float p) const;
    void learn_correction(std::uint32_t key, bool right);

    // Little-endian floats behind a small header; load returns false and changes nothing where the
    // bytes are not of this version.
    std::string save() const;
    bool load(const std::string& bytes);
    // Whether anything was learned since this was made or loaded.
    bool changed() const { return changed_.load(std::memory_order_relaxed); }

  private:
    struct Counter {
        std::atomic<float> right{0.f};
        std::atomic<float> seen{0.f};
        void add(bool hit, float limit);
    };

    std::atomic<bool> changed_{false};
    std::vector<Counter> features_;
    std::vector<Counter> corrections_;
    std::vector<std::atomic<float>> weights_;  // mixer_key * kInputs + input
};

}  // namespace suffixsvc
