// Acceptance of the tokens that one drafting layer proposes, learned online: corrects the layer's own
// probabilities. Three levels of statistics, each level being the prior of the next:
//
//     layer                              expected / observed acceptances: scales probabilities down, never up
//     layer, raw probability             acceptance in this bucket (of eight), shrunk towards the level above
//     layer, raw probability, depth      the same at this depth of the draft (four buckets)
//
// Counts halve at a cap, so the table follows a layer whose accuracy changes.
//
// Threads: none; callers serialise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace suffixsvc {

class AcceptanceTable {
  public:
    // P(accepted | all tokens before it accepted) of each drafted token.
    //
    // raw: probabilities given by the layer; depths: positions in the draft, 0 for the first token.
    // std::invalid_argument for a probability that is not in 0 .. 1, or another number of depths.
    std::vector<double> calibrate(std::span<const double> raw, std::span<const std::size_t> depths) const;

    // Records a label: whether the target wrote this token, all tokens before it being accepted.
    // std::invalid_argument for a probability that is not in 0 .. 1.
    void learn(double raw, std::size_t depth, bool hit);

    // Labels the tokens of a chain up to the first that the target did not write. `first_depth`: position of
    // the first one. The shortest argument ends the comparison. Errors as in `learn`.
    void label(std::span<const std::int64_t> drafted, std::span<const double> raw,
               std::span<const std::int64_t> written, std::size_t first_depth);

    // Acceptance rate of all labelled tokens; `prior` before there are any.
    double acceptance(double prior) const;

  private:
    static constexpr std::size_t kProbabilities = 8;
    static constexpr std::size_t kDepths = 4;

    // Sum and weight of observations; both halve when the weight exceeds the cap.
    struct Mean {
        double total = 0.0;
        double weight = 0.0;

        void add(double value, double value_weight);
        double mean(double prior) const;
    };

    struct Bucket {
        Mean all;  // of this bucket of raw probabilities
        std::array<Mean, kDepths> at_depth;
    };

    Mean overall_;  // observed over expected acceptances
    std::array<Bucket, kProbabilities> buckets_;
};

}  // namespace suffixsvc
