// Binary search in one segment; for segment/query/segment_find.cpp, segment_gather.cpp and
// segment_hub_correction.cpp only. W: bytes of a code.
#pragma once

#include <algorithm>
#include <atomic>

#include "segment/query/segment.h"

namespace suffixsvc {

// The tokens before a position as codes, newest first. Codes are looked up lazily; the query ends before the
// first token that the segment does not have.
class SegmentQuery {
  public:
    SegmentQuery(std::span<const Token> context, const Alphabet& alphabet)
        : newest_(context.data() + context.size()),
          size_(static_cast<std::uint32_t>(std::min<std::size_t>(context.size(), kSegmentContext))),
          alphabet_(&alphabet) {}
    explicit SegmentQuery(std::span<const std::uint32_t> codes)
        : size_(static_cast<std::uint32_t>(codes.size())), known_(size_) {
        std::copy(codes.begin(), codes.end(), codes_.begin());
    }
    // 0 after the end.
    std::uint32_t at(std::uint32_t i) {
        while (known_ <= i && known_ < size_) {
            codes_[known_] = alphabet_->code(newest_[-1 - static_cast<std::ptrdiff_t>(known_)]);
            if (codes_[known_] == 0)
                size_ = known_;
            else
                ++known_;
        }
        return i < size_ ? codes_[i] : 0;
    }

  private:
    const Token* newest_ = nullptr;
    std::uint32_t size_;
    std::uint32_t known_ = 0;
    const Alphabet* alphabet_ = nullptr;
    std::array<std::uint32_t, kSegmentContext> codes_;
};

template <std::uint32_t W>
class SegmentSearch {
  public:
    explicit SegmentSearch(const Segment& segment)
        : s_(segment),
          counts_(segment.counts()),
          text_(segment.column(Column::text)),
          order_(segment.column(Column::order)),
          next_(segment.column(Column::next)),
          lcp_(segment.column(Column::lcp)),
          hubs_(segment.hubs_) {}

    // The position of a query among the entries of its bucket.
    struct Place {
        std::uint32_t begin = 0, end = 0;  // the bucket
        std::uint32_t at = 0;              // first entry whose context does not sort before the query
        std::uint32_t left = 0,
                      right = 0;  // tokens shared with the entries at - 1 and at; 0: not in the bucket
    };

    // `guess`: an entry to begin at, or kNoEntry; the closer it is, the fewer comparisons.
    bool locate(SegmentQuery& query, std::uint32_t guess, Place& place) const {
        const std::uint32_t newest = query.at(0);
        if (newest == 0) return false;
        const auto buckets = s_.values<std::uint32_t>(Column::buckets);
        std::uint32_t low = place.begin = buckets[newest], high = place.end = buckets[newest + 1];
        if (low >= high || high > counts_.entries) return false;
        std::uint32_t left = 1, right = 1;  // all entries of the bucket share one token at least
        const auto try_entry = [&](std::uint32_t entry) {
            std::uint32_t shared = std::min(left, right);
            const Side side = compare(entry, query, shared);
            if (side == Side::before) {
                low = entry + 1;
                left = shared;
            } else {
                high = entry;
                right = shared;
            }
            return side;
        };
        if (guess != kNoEntry) {
            // Gallops outward until the query is between two compared entries.
            std::uint32_t entry = std::clamp(guess, low, high - 1);
            const Side first_side = try_entry(entry);
            if (first_side == Side::broken) return false;
            for (std::uint32_t step = 1; low < high; step *= 4) {
                if (first_side == Side::before)
                    entry = high - low > step ? low + step - 1 : high - 1;
                else
                    entry = high - low > step ? high - step : low;
                const Side side = try_entry(entry);
                if (side == Side::broken) return false;
                if (side != first_side) break;
            }
        }
        while (low < high) {
            const std::uint64_t size = high - low;
            // Seven probes at once: their cache misses overlap, and three comparisons select an eighth of
            // the range.
            const std::uint32_t parts = size < 8 ? static_cast<std::uint32_t>(size) : 8;
            std::array<std::uint32_t, 9> probe;
            for (std::uint32_t k = 0; k < parts; ++k) {
                probe[k] = low + static_cast<std::uint32_t>(size * k / parts);
                __builtin_prefetch(order_ + std::size_t{probe[k]} * 4);
            }
            for (std::uint32_t k = 0; k < parts; ++k) {
                std::uint32_t position;  // not validated: only prefetched
                std::memcpy(&position, order_ + std::size_t{probe[k]} * 4, 4);
                const std::uint8_t* before = text_ + std::uint64_t{position} * W;
                __builtin_prefetch(before - 1);
                if (left > 24 && right > 24) __builtin_prefetch(before - 65);
            }
            // With fewer than eight entries left, each is a probe, and this is the last round.
            std::uint32_t first = parts == 8 ? 1 : 0, last = parts;
            while (first < last) {
                const std::uint32_t middle = (first + last) / 2;
                const Side side = try_entry(probe[middle]);
                if (side == Side::broken) return false;
                if (side == Side::before)
                    first = middle + 1;
                else
                    last = middle;
            }
        }
        place.at = low;
        place.left = low > place.begin ? left : 0;
        place.right = low < place.end ? right : 0;
        return true;
    }

    // The smallest hub around an entry; kNoHub: none, or damaged.
    std::uint32_t hub_around(std::uint32_t entry) const {
        const auto index = s_.values<std::uint32_t>(Column::hub_index);
        const auto starts = s_.values<std::uint32_t>(Column::hub_start);
        const std::uint32_t from = index[entry / kHubBlock], to = index[entry / kHubBlock + 1];
        if (from > to || to > starts.size() || !s_.touch(&starts[from], (to - from) * std::size_t{4}))
            return kNoHub;
        const auto* above = std::upper_bound(starts.data() + from, starts.data() + to, entry);
        std::uint32_t hub =
            static_cast<std::uint32_t>(above - starts.data()) - 1;  // kNoHub if none starts before
        while (hub != kNoHub && valid(hub) && hubs_[hub].end <= entry) hub = hubs_[hub].parent;
        return hub != kNoHub && valid(hub) ? hub : kNoHub;
    }

    // Validates a hub: its blocks are good and its references are in range.
    bool valid(std::uint32_t hub) const {
        const auto starts = s_.values<std::uint32_t>(Column::hub_start);
        if (hub < starts.size() && s_.touch(&starts[hub], 4) &&
            s_.touch(s_.column(Column::hubs) + std::size_t{hub} * sizeof(SegmentHub), sizeof(SegmentHub))) {
            const SegmentHub& h = hubs_[hub];
            if ((h.parent == kNoHub || h.parent < hub) && h.end <= counts_.entries && starts[hub] < h.end &&
                h.depth >= 1 && h.depth <= kSegmentContext && h.followers <= kHubFollowers)
                return true;
        }
        s_.mark_corrupt();
        return false;
    }

    bool position(std::uint32_t entry, std::uint32_t& p) const {
        const std::uint8_t* at = order_ + std::size_t{entry} * 4;
        if (!s_.touch(at, 4)) return false;
        std::memcpy(&p, at, 4);
        if (p > 0 && p < counts_.text) return true;
        s_.mark_corrupt();
        return false;
    }

  protected:
    enum class Side { before, not_before, broken };

    // Compares an entry's context with the query; `shared` is the number of shared tokens, in: a known lower
    // bound, out: exact.
    Side compare(std::uint32_t entry, SegmentQuery& query, std::uint32_t& shared) const {
        std::uint32_t p;
        if (!position(entry, p)) return Side::broken;
        const std::uint32_t reach = std::min(p, kSegmentContext);
        if (!s_.touch(text_ + std::uint64_t{p - reach} * W, std::size_t{reach} * W)) return Side::broken;
        for (;; ++shared) {
            const std::uint32_t wanted = query.at(shared);
            if (wanted == 0) return Side::not_before;
            const std::uint32_t code = shared < reach ? load_code<W>(text_, p - 1 - shared) : 0;
            if (code != wanted) return code < wanted ? Side::before : Side::not_before;
        }
    }

    // The numbers of a hub change while other threads read them.
    static std::uint32_t load(std::uint32_t& value) {
        return std::atomic_ref<std::uint32_t>(value).load(std::memory_order_relaxed);
    }

    const Segment& s_;
    const SegmentCounts& counts_;
    const std::uint8_t* text_;
    const std::uint8_t* order_;
    const std::uint8_t* next_;
    const std::uint8_t* lcp_;
    SegmentHub* hubs_;  // votes, totals and newest positions are writable
};

// Calls f.template operator()<W>() for the width of a segment's codes.
template <typename F>
auto by_width(const Segment& segment, F f) {
    switch (segment.counts().code_bytes) {
        case 2:
            return f.template operator()<2>();
        case 3:
            return f.template operator()<3>();
        default:
            return f.template operator()<4>();
    }
}

}  // namespace suffixsvc
