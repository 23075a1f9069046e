// From runs to records of llama.cpp's lookup caches: every n-gram with what followed it and how often.
//
//     record :=  n-gram int32[slots], oldest token first, free slots -1;  followers int32;
//                (token int32, count int32) * followers, by falling count, then by token
//
// Records of one order come sorted by n-gram. What is cut is cut the way llama.cpp decides: an n-gram *fires*
// where it was seen often enough and its best follower has enough of it; no cut makes one fire that did not,
// or silences one that did.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "file_fault.h"
#include "ngram_key.h"
#include "segment_writer.h"  // SegmentJob

namespace suffixsvc {

// One file of records: which, and what was found.
struct TallyOutput {
    std::string path;
    unsigned order = 1;
    unsigned slots = 4;           // >= order
    std::uint64_t min_count = 1;  // rarer followers are left out
    std::uint32_t top = 0;        // followers of an n-gram at most; 0 = all
    std::uint32_t max_count = 0;  // of the best follower; the others are scaled with it. 0 = what int32 holds
    std::uint32_t least = 0;      // an n-gram fires where it was seen so often,
    std::uint32_t percent = 0;    // and its best follower has so much of it
    bool firing = false;          // only n-grams that fire
    bool unique = false;          // where two best followers of an n-gram that fires are equal, the smaller
                          // token gets one more: llama.cpp would take whichever its hash map lists first

    bool totals = false;  // the last slot holds how often the n-gram was seen; needs slots > order

    std::uint64_t records = 0;
    std::uint64_t pairs = 0;
    std::uint64_t bytes = 0;
    std::uint64_t count_sum = 0;    // of the counts as written
    std::uint64_t occurrences = 0;  // of n-grams with a follower, before any cut
};

// Merges runs of one shape: windows whose oldest token t has low <= t < high, 0 <= low <= high <= 2^31. Files
// are synced; on a fault none is left.
FileFault tally_runs(const std::vector<std::string>& runs, std::int64_t low, std::int64_t high,
                     std::size_t memory_bytes, std::vector<TallyOutput>& outputs, SegmentJob& job);

// Merges runs of one shape into one.
FileFault combine_runs(const std::vector<std::string>& runs, const std::string& path,
                       std::size_t memory_bytes, SegmentJob& job);

// Tokens that divide the windows of runs into about equal parts, one or more, by their oldest token; rising,
// fewer than `parts`.
FileFault split_runs(const std::vector<std::string>& runs, unsigned parts, std::vector<std::int64_t>& tokens);

}  // namespace suffixsvc
