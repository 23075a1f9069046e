// Counts of followers; for segment/query/segment_gather.cpp only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "segment/format/segment_hubs.h"
#include "segment/query/segment.h"

namespace suffixsvc {

// Followers of the exactly counted levels of a view. The levels are nested, longest first, so one pass over
// the entries of the last counts all of them: a row stores what each level adds to the one before.
class FollowerCounts {
  public:
    struct Row {
        std::uint32_t code;
        std::uint32_t newest;
        std::uint32_t votes;  // votes of the levels so far
        std::array<std::uint32_t, kMaxLevels> added;
    };

    explicit FollowerCounts(std::uint32_t entries) : hashed_(entries > kLinear) {
        if (hashed_) slots_.fill(0);
    }
    void add(std::uint32_t code, std::uint32_t position, std::uint32_t weight, std::size_t level) {
        const std::size_t at = find(code, true);
        Row& row = rows_[at];
        if (row.added[level] == 0) touched_[touched_size_++] = static_cast<std::uint16_t>(at);
        row.votes += weight;
        row.added[level] += weight;
        row.newest = std::max(row.newest, position);
    }
    const Row* row(std::uint32_t code) {
        const std::size_t at = find(code, false);
        return at < size_ ? &rows_[at] : nullptr;
    }
    // Calls f(row) for the rows that changed since the last call.
    template <typename F>
    void for_each_touched(F f) {
        for (std::size_t i = 0; i < touched_size_; ++i) f(rows_[touched_[i]]);
        touched_size_ = 0;
    }

  private:
    static constexpr std::uint32_t kLinear = 12;
    static constexpr std::uint32_t kSlots = 2 * kExactEntries;

    std::size_t find(std::uint32_t code, bool make) {
        std::uint32_t at = 0;
        if (!hashed_) {
            for (std::size_t i = 0; i < size_; ++i)
                if (codes_[i] == code) return i;
        } else {
            for (at = (code * 0x9E3779B1u >> 16) % kSlots; slots_[at] != 0; at = (at + 1) % kSlots)
                if (codes_[slots_[at] - 1u] == code) return slots_[at] - 1u;
        }
        if (!make) return size_;
        if (hashed_) slots_[at] = static_cast<std::uint16_t>(size_ + 1);
        Row& row = rows_[size_];
        row.code = codes_[size_] = code;
        row.newest = row.votes = 0;
        row.added.fill(0);
        return size_++;
    }

    bool hashed_;
    std::size_t size_ = 0;
    std::size_t touched_size_ = 0;
    std::array<std::uint16_t, kExactEntries> touched_;
    std::array<Row, kExactEntries> rows_;
    std::array<std::uint32_t, kExactEntries> codes_;  // codes of the rows, contiguous for scanning
    std::array<std::uint16_t, kSlots> slots_;
};

// Followers of a level that is not counted exactly: those of a hub, or of evenly spaced entries.
struct FollowerList {
    bool hub = false;
    std::uint32_t size = 0;
    std::uint64_t entries_read = 0;  // samples: entries read, forgotten ones included
    std::array<std::uint32_t, kSampledEntries> code, votes, newest;

    // Adds one sample.
    void add(std::uint32_t sample, std::uint32_t position, std::uint32_t weight) {
        std::uint32_t i = 0;
        while (i < size && code[i] != sample) ++i;
        if (i == size) {
            code[size] = sample;
            votes[size] = newest[size] = 0;
            ++size;
        }
        votes[i] += weight;
        newest[i] = std::max(newest[i], position);
    }
    // kNoVotes: not listed.
    std::uint32_t of(std::uint32_t wanted) const {
        for (std::uint32_t i = 0; i < size; ++i)
            if (code[i] == wanted) return votes[i];
        return kNoVotes;
    }
    static constexpr std::uint32_t kNoVotes = 0xFFFFFFFFu;
};

// The strongest of the followers that were offered, the newer first among equals.
template <std::size_t Most>
class TopFollowers {
  public:
    explicit TopFollowers(std::size_t width) : width_(width) {}
    void offer(std::uint32_t code, std::uint32_t votes, std::uint32_t newest) {
        if (votes == 0) return;
        std::size_t at = size_;
        while (at > 0 && (votes_[at - 1] < votes || (votes_[at - 1] == votes && newest_[at - 1] < newest)))
            --at;
        if (at >= width_) return;
        size_ = std::min(size_ + 1, width_);
        for (std::size_t m = size_ - 1; m > at; --m) {
            code_[m] = code_[m - 1];
            votes_[m] = votes_[m - 1];
            newest_[m] = newest_[m - 1];
        }
        code_[at] = code;
        votes_[at] = votes;
        newest_[at] = newest;
    }
    std::span<const std::uint32_t> codes() const { return {code_.data(), size_}; }

  private:
    std::size_t width_;
    std::size_t size_ = 0;
    std::array<std::uint32_t, Most> code_, votes_, newest_;
};

}  // namespace suffixsvc
