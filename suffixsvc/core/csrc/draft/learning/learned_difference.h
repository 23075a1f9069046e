// What a learner learned since an earlier state, its base: the difference that a follower sends, and that the
// service merges into the learner of the namespace.
//
// Followers learn apart and send now and then, as in federated averaging (McMahan et al. 2017). A plain
// average would dilute what only one of them learned, and a plain sum would overshoot where all of them
// learned the same. Therefore the tables are merged by what their numbers mean. S is the service's number, B
// the base's, F the follower's:
//
//   counters that grew    S + (F - B)   counts of independent observations add up
//   counters that decayed               (halved at the limit; gains always) F - B is no count. The estimates
//   are
//                                       pooled: the mean of S and F, weighted by the observations of each,
//                                       with the observations of the larger one
//   weights               three-way merge: moves B -> S and B -> F of the same direction are the same lesson,
//   and
//                         the longer one counts; moves of opposite directions add up (compare the elected
//                         signs of TIES-Merging, Yadav et al. 2023)
//
// Every merged probability of a counter lies between those of S and of what was learned; every merged weight
// lies between S and F. So no number of followers can move it further than the one that moved it furthest.
// Merged into the base itself, counters that grew and weights become the follower's.
//
// Bytes (docs/format.md): they come from the network. A checksum covers them, and parse() refuses every value
// that between() cannot produce.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "draft/learning/learner.h"

namespace suffixsvc {

struct LearnedDifference {
    struct Count {
        std::uint32_t index;
        bool decayed;  // right and seen are the follower's; otherwise what was added to the base's
        float right;
        float seen;
    };
    struct Move {
        std::uint32_t index;
        float to;  // the follower's weight
        float by;  // rounded to 8 significant bits
    };

    static LearnedDifference between(const LearnedTables& base, const LearnedTables& now);
    // nullopt if the bytes are damaged or of another version. `like` provides the sizes of the tables.
    static std::optional<LearnedDifference> parse(std::string_view bytes, const LearnedTables& like);

    bool empty() const { return features.empty() && gains.empty() && weights.empty() && final.empty(); }
    std::string pack(const LearnedTables& like) const;
    void merge_into(LearnedTables& tables) const;

    // In ascending order of their index.
    std::vector<Count> features, gains;
    std::vector<Move> weights, final;
};

}  // namespace suffixsvc
