// The texts of a segment: position, age, and the outputs in which they occur.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <numeric>
#include <span>
#include <unordered_set>
#include <vector>

#include "segment/format/segment_format.h"

namespace suffixsvc {

// An occurrence of a text in an output.
struct SegmentOccurrence {
    std::uint64_t lsn = 0;
    std::uint32_t text = 0;
    auto operator<=>(const SegmentOccurrence&) const = default;
};

// A text that a new segment is to have.
struct TextCandidate {
    std::uint64_t age;  // the newest LSN it was sealed with
    std::uint32_t size;
    std::uint8_t context;  // leading tokens that are context only
};

// The columns of the same names (segment/format/segment_format.h) while a segment is built.
struct TextTable {
    std::vector<std::uint32_t> start;
    std::vector<std::uint8_t> context;
    std::vector<std::uint64_t> age;
    std::vector<std::uint64_t> occ_lsn;
    std::vector<std::uint32_t> occ_text;
    std::vector<std::uint32_t> candidates;  // number of each text's candidate
    std::uint64_t positions = 1;            // of the text column
    std::uint64_t entries = 0;

    // Plans the table: the candidates in order of age, equal ones once, with the age of the newest of them.
    // The texts of `occurrences` are numbers of candidates; token_at(candidate, i) are a candidate's tokens.
    template <typename TokenAt>
    TextTable(std::span<const TextCandidate> all, std::vector<SegmentOccurrence> occurrences,
              TokenAt token_at);
    // Occurrences of each text.
    std::vector<std::uint32_t> weights() const {
        std::vector<std::uint32_t> out(context.size());
        for (std::uint32_t t : occ_text) ++out[t];
        return out;
    }
};

template <typename TokenAt>
TextTable::TextTable(std::span<const TextCandidate> all, std::vector<SegmentOccurrence> occurrences,
                     TokenAt token_at) {
    const auto hash = [&](std::uint32_t c) {
        std::uint64_t h = all[c].context + 0x9E3779B97F4A7C15ull;
        for (std::uint32_t i = 0; i < all[c].size; ++i) {
            h = (h ^ static_cast<std::uint32_t>(token_at(c, i))) * 0xff51afd7ed558ccdull;
            h ^= h >> 29;
        }
        return h;
    };
    const auto equal = [&](std::uint32_t a, std::uint32_t b) {
        if (all[a].context != all[b].context || all[a].size != all[b].size) return false;
        std::uint32_t i = 0;
        while (i < all[a].size && token_at(a, i) == token_at(b, i)) ++i;
        return i == all[a].size;
    };
    std::vector<std::uint32_t> order(all.size()), same_as(all.size()), place(all.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, {}, [&](std::uint32_t c) { return all[c].age; });
    // From the newest on, so that the newest of equal texts is retained.
    std::unordered_set<std::uint32_t, decltype(hash), decltype(equal)> known(all.size(), hash, equal);
    for (std::size_t i = order.size(); i-- > 0;) same_as[order[i]] = *known.insert(order[i]).first;
    for (const std::uint32_t c : order) {
        if (same_as[c] != c) continue;
        place[c] = static_cast<std::uint32_t>(candidates.size());
        candidates.push_back(c);
        start.push_back(static_cast<std::uint32_t>(positions));
        context.push_back(all[c].context);
        age.push_back(all[c].age);
        positions += std::uint64_t{all[c].size} + 1;
        entries += all[c].size - all[c].context;
    }
    start.push_back(static_cast<std::uint32_t>(positions));
    for (SegmentOccurrence& o : occurrences) o.text = place[same_as[o.text]];
    std::sort(occurrences.begin(), occurrences.end());
    for (const SegmentOccurrence& o : occurrences) {
        occ_lsn.push_back(o.lsn);
        occ_text.push_back(o.text);
    }
}

// Maps a position to its text, by a table of the first text of each block of positions. Positions must lie in
// a text (separators belong to the text before them) and below `end`; `starts` are strictly ascending, and
// must outlive the map. If pages of `starts` become zeros, the result is an arbitrary text.
class TextMap {
  public:
    TextMap() = default;
    TextMap(std::span<const std::uint32_t> starts, std::uint32_t end) : starts_(starts) {
        first_.reserve((end >> kShift) + 2);
        std::uint32_t text = 0;
        for (std::uint64_t p = 0; p <= end; p += 1u << kShift) {
            while (text + 2 < starts.size() && starts[text + 1] <= p) ++text;
            first_.push_back(text);
        }
    }
    std::uint32_t at(std::uint32_t position) const {
        std::uint32_t text = first_[position >> kShift];
        while (text + 2 < starts_.size() && starts_[text + 1] <= position) ++text;
        return text;
    }
    std::size_t bytes() const { return first_.size() * 4; }

  private:
    static constexpr std::uint32_t kShift = 8;  // at most 128 texts of one token in a block
    std::span<const std::uint32_t> starts_;
    std::vector<std::uint32_t> first_;
};

}  // namespace suffixsvc
