// The texts of a segment: where they lie, how old they are, in which outputs they occur.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "segment_writer.h"

namespace suffixsvc {

// The columns of the same names (segment_format.h) while a segment is made.
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

// Position to text, by the first text of each block of positions. Positions must lie in a text (separators
// belong to the text before them) and below `end`; `starts` ascend strictly, and stay where they are. Where
// they turn to zeros the answer is some text.
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
