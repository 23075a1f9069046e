// The texts of a segment: position, age, and the outputs in which they occur.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "segment/segment_writer.h"

namespace suffixsvc {

// The columns of the same names (segment/segment_format.h) while a segment is built.
struct TextTable {
    std::vector<std::uint32_t> start;
    std::vector<std::uint8_t> context;
    std::vector<std::uint64_t> age;
    std::vector<std::uint64_t> occ_lsn;
    std::vector<std::uint32_t> occ_text;

    std::size_t size() const { return context.size(); }
    // Occurrences of each text.
    std::vector<std::uint32_t> weights() const {
        std::vector<std::uint32_t> out(size());
        for (std::uint32_t t : occ_text) ++out[t];
        return out;
    }
    // Sets the counts of texts and occurrences, and the range of LSNs.
    void describe(SegmentHeader& header) const;
    bool write(SegmentWriter& writer, const SegmentLayout& layout) const;
};

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
