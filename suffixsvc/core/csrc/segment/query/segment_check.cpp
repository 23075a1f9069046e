#include <algorithm>
#include <string>
#include <vector>

#include "base/files/crc32c.h"
#include "segment/format/segment_hubs.h"
#include "segment/query/segment.h"

namespace suffixsvc {

namespace {

// Verifies one segment; every method returns the first violated invariant, or an empty string. Columns are
// accessed by validated positions only, so arbitrary file contents are safe.
class Checker {
  public:
    explicit Checker(const Segment& segment)
        : s_(segment),
          c_(segment.counts()),
          starts_(segment.copied<std::uint32_t>(Column::text_start)),
          contexts_(segment.values<std::uint8_t>(Column::text_context)) {}

    std::string texts() const {
        std::uint32_t largest = 0;
        if (starts_.front() != 1 || starts_.back() != c_.text ||
            !std::is_sorted(starts_.begin(), starts_.end()))
            return "the texts do not cover the text column";
        if (code(0) != 0) return "the text column does not begin with a separator";
        const auto ages = s_.values<std::uint64_t>(Column::text_age);
        std::vector<bool> used(std::size_t{c_.alphabet} + 1);
        for (std::uint32_t t = 0; t < c_.texts; ++t) {
            if (t > 0 && ages[t] < ages[t - 1]) return "texts are not in order of age" + of(t);
            if (contexts_[t] > kSegmentContext) return "a context is too long" + of(t);
            for (std::uint32_t p = starts_[t]; p + 1 < starts_[t + 1]; ++p) {
                if (code(p) == 0 || code(p) > c_.alphabet) return "a code is not in the alphabet" + of(t);
                used[code(p)] = true;
                largest = std::max(largest, code(p));
            }
            if (code(starts_[t + 1] - 1) != 0) return "no separator after the text" + of(t);
        }
        for (std::uint32_t each = 1; each <= c_.alphabet; ++each)
            if (!used[each]) return "the alphabet has an unused id";
        return "";
    }

    std::string occurrences() const {
        const auto lsns = s_.values<std::uint64_t>(Column::occ_lsn);
        const auto texts = s_.values<std::uint32_t>(Column::occ_text);
        const auto ages = s_.values<std::uint64_t>(Column::text_age);
        std::vector<bool> used(c_.texts);
        for (std::uint32_t i = 0; i < c_.occurrences; ++i) {
            if (i > 0 && (lsns[i] < lsns[i - 1] || (lsns[i] == lsns[i - 1] && texts[i] < texts[i - 1])))
                return "occurrences are out of order";
            if (lsns[i] > ages[texts[i]]) return "an output is newer than its text" + of(texts[i]);
            used[texts[i]] = true;
        }
        for (std::uint32_t t = 0; t < c_.texts; ++t)
            if (!used[t]) return "no output has the text" + of(t);
        const SegmentHeader& h = s_.header();
        if (c_.occurrences > 0 ? h.first_lsn != lsns.front() || h.last_lsn != lsns.back()
                               : h.first_lsn != 0 || h.last_lsn != 0)
            return "the header's range of LSNs does not match the occurrences";
        return "";
    }

    std::string entries() const {
        const auto order = s_.values<std::uint32_t>(Column::order);
        const auto lcp = s_.values<std::uint8_t>(Column::lcp);
        const auto buckets = s_.values<std::uint32_t>(Column::buckets);
        const std::uint8_t* next = s_.column(Column::next);
        std::vector<bool> seen(c_.text);
        for (std::uint32_t i = 0; i < c_.entries; ++i) {
            const std::uint32_t p = order[i];
            if (p == 0 || p >= c_.text || code(p) == 0) return "an entry has no token" + at(i);
            const std::uint32_t t = s_.text_map().at(p);
            if (p < starts_[t] + contexts_[t]) return "a token that is context only is counted" + at(i);
            if (seen[p]) return "a position has two entries" + at(i);
            seen[p] = true;
            if (load_code(next, c_.code_bytes, i) != code(p))
                return "the next token does not match the text" + at(i);
            const std::uint32_t newest = code(p - 1);
            if (i < buckets[newest] || i >= buckets[newest + 1])
                return "an entry is in the wrong bucket" + at(i);
            if (i == 0) {
                if (lcp[0] != 0) return "the lcp is wrong" + at(i);
                continue;
            }
            std::uint32_t shared = 0;
            while (shared < kSegmentContext && context(p, shared) != 0 &&
                   context(p, shared) == context(order[i - 1], shared))
                ++shared;
            if (lcp[i] != shared) return "the lcp is wrong" + at(i);
            const bool same =
                shared == kSegmentContext || context(p, shared) == context(order[i - 1], shared);
            if (same ? p < order[i - 1] : context(p, shared) < context(order[i - 1], shared))
                return "contexts are out of order" + at(i);
        }
        return "";
    }

    std::string hubs() const {
        std::vector<std::uint32_t> weights(c_.texts);
        for (std::uint32_t t : s_.values<std::uint32_t>(Column::occ_text)) ++weights[t];
        SegmentJob job;
        const SortedColumns columns(s_.file(), s_.layout(), c_, s_.text_map(), weights);
        const HubList found = find_hubs(columns, c_.hub_min, job);
        const auto same = [&](Column column, const auto& values) {
            const std::size_t bytes = values.size() * sizeof values[0];
            return s_.values<std::uint8_t>(column).size() == bytes &&
                   (bytes == 0 || std::memcmp(s_.column(column), values.data(), bytes) == 0);
        };
        if (!same(Column::hub_start, found.start)) return "the hubs do not match the lcp column";
        if (!same(Column::hub_index, found.index)) return "the index of hubs is wrong";
        if (!same(Column::hubs, found.hubs)) return "a hub's counts are wrong";
        return "";
    }

  private:
    std::uint32_t code(std::uint32_t p) const { return load_code(s_.column(Column::text), c_.code_bytes, p); }
    std::uint32_t context(std::uint32_t p, std::uint32_t i) const { return i < p ? code(p - 1 - i) : 0; }
    static std::string of(std::uint32_t t) { return " (text " + std::to_string(t) + ")"; }
    static std::string at(std::uint32_t i) { return " (entry " + std::to_string(i) + ")"; }

    const Segment& s_;
    const SegmentCounts& c_;
    std::vector<std::uint32_t> starts_;  // a copy: values that lead to memory are read once (segment.h)
    std::span<const std::uint8_t> contexts_;
};

}  // namespace

std::string Segment::check() const {
    // Blocks that were good when they were first read are verified again.
    for (std::uint64_t b = 0; b < layout_.blocks; ++b)
        if (!verify(b)) return "a checksum does not match (block " + std::to_string(b) + ")";
    const Checker checker(*this);
    for (const auto part : {&Checker::texts, &Checker::occurrences, &Checker::entries, &Checker::hubs})
        if (std::string what = (checker.*part)(); !what.empty()) {
            mark_corrupt();
            return what;
        }
    return corrupt() ? "a page cannot be read" : "";
}

void Segment::require_sound() const {
    if (const std::string what = check(); !what.empty()) throw fault(FileFault::Kind::corrupt, what);
}

}  // namespace suffixsvc
