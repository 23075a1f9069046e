// Converts runs to records of llama.cpp's lookup caches: every n-gram with the counts of its followers.
//
//   record :=  n-gram int32[slots], oldest token first, unused slots -1;  followers int32;
//              (token int32, count int32) * followers, by descending count, then by token
//
// Records of one order are sorted by n-gram. Pruning preserves the decisions of llama.cpp: an n-gram *fires*
// if it was seen often enough and its best follower has a large enough share; pruning neither makes an n-gram
// fire nor prevents it from firing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sync/job.h"
#include "ngram/ngram_key.h"

namespace suffixsvc {

// One file of records: its parameters, and statistics of the result.
struct TallyOutput {
    FilePath path{""};
    unsigned order = 1;
    unsigned slots = 4;           // >= order
    std::uint64_t min_count = 1;  // rarer followers are dropped
    std::uint32_t top = 0;        // maximum followers of an n-gram; 0: all
    // maximum count of the best follower, by which the others are scaled; 0: that of int32
    std::uint32_t max_count = 0;
    std::uint32_t least = 0;    // an n-gram fires if it was seen this often,
    std::uint32_t percent = 0;  // and its best follower has this share
    bool firing = false;        // write only n-grams that fire
    // If the two best followers of a firing n-gram are equal, add one to that with the smaller token:
    // llama.cpp would take the one that its hash map lists first.
    bool unique = false;
    bool totals = false;  // the last slot holds the total count of the n-gram; needs slots > order

    std::uint64_t records = 0;
    std::uint64_t pairs = 0;
    std::uint64_t bytes = 0;
    std::uint64_t count_sum = 0;    // sum of the counts as written
    std::uint64_t occurrences = 0;  // of n-grams with a follower, before pruning
};

// Merges runs of one shape: windows whose oldest token t has low <= t < high, 0 <= low <= high <= 2^31. Files
// are synced; on a fault none is left. Returns the outputs with their statistics.
std::vector<TallyOutput> tally_runs(const std::vector<FilePath>& runs, std::vector<TallyOutput> outputs,
                                    std::int64_t low, std::int64_t high, std::size_t memory_bytes,
                                    SegmentJob& job);

// Merges runs of one shape into one.
void combine_runs(const std::vector<FilePath>& runs, const FilePath& path, std::size_t memory_bytes,
                  SegmentJob& job);

// Tokens that divide the windows of one or more runs into about equal parts, by their oldest token;
// ascending, fewer than `parts`.
std::vector<std::int64_t> split_runs(const std::vector<FilePath>& runs, unsigned parts);

}  // namespace suffixsvc
