#include <algorithm>
#include <bit>

#include "segment/query/segment_search.h"

namespace suffixsvc {

namespace {

// The largest order that is at most len; 0: none.
std::uint32_t order_of(std::span<const int> orders, std::uint32_t len) {
    std::uint32_t best = 0;
    for (int order : orders)
        if (order > 0 && static_cast<std::uint32_t>(order) <= len) best = static_cast<std::uint32_t>(order);
    return best;
}

// Eight lcps at once: none is above 64, so the top bit of each byte is free for comparisons.
constexpr std::uint64_t kBytes = 0x0101010101010101ull;
constexpr std::uint64_t kTops = 0x8080808080808080ull;

// Sets the top bit of each byte that is at least `least` (of any byte if some are above 127: the file
// is damaged).
std::uint64_t at_least(std::uint64_t bytes, std::uint32_t least) {
    return ((bytes | kTops) - kBytes * least) & kTops;
}

std::uint64_t load_eight(const std::uint8_t* p) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    return word;
}

void lower(std::uint32_t& least, std::uint64_t bytes) {
    if (at_least(bytes, least) == kTops) return;
    for (int i = 0; i < 64; i += 8) least = std::min(least, static_cast<std::uint32_t>((bytes >> i) & 0xFF));
}

// The first index at or after `at` whose lcp is below `wanted`, or `end`; `least` becomes the minimum of
// those passed.
std::uint32_t run_up(const std::uint8_t* lcp, std::uint32_t at, std::uint32_t end, std::uint32_t wanted,
                     std::uint32_t& least) {
    for (; at + 8 <= end; at += 8) {
        const std::uint64_t bytes = load_eight(lcp + at);
        if (at_least(bytes, wanted) != kTops) break;
        lower(least, bytes);
    }
    for (; at < end && lcp[at] >= wanted; ++at) least = std::min<std::uint32_t>(least, lcp[at]);
    return at;
}

// The last index at or before `at` whose lcp is below `wanted`, or `begin`.
std::uint32_t run_down(const std::uint8_t* lcp, std::uint32_t at, std::uint32_t begin, std::uint32_t wanted,
                       std::uint32_t& least) {
    for (; at >= begin + 8; at -= 8) {
        const std::uint64_t bytes = load_eight(lcp + at - 7);
        if (at_least(bytes, wanted) != kTops) break;
        lower(least, bytes);
    }
    for (; at > begin && lcp[at] >= wanted; --at) least = std::min<std::uint32_t>(least, lcp[at]);
    return at;
}

template <std::uint32_t W>
class Finder : public SegmentSearch<W> {
  public:
    using Base = SegmentSearch<W>;
    using Base::Base, Base::counts_, Base::hubs_, Base::lcp_, Base::s_;

    // Returns false if the segment is damaged.
    bool find(std::span<const Token> context, std::span<const int> orders, bool plain,
              const SegmentView* before, SegmentView& view) const {
        SegmentQuery query(context, s_.alphabet());
        typename Base::Place place;
        const std::uint32_t guess = before ? guess_from(*before, query.at(0)) : kNoEntry;
        view.size = 0;
        if (!this->locate(query, guess, place)) return true;
        view.at = place.at;
        // Entries around the query's position, as far out as no hub is needed; their lcps are read in
        // one window.
        const std::uint32_t centre = place.right >= place.left ? place.at : place.at - 1;
        const std::uint32_t reach = counts_.hub_min;
        const std::uint32_t floor = centre - place.begin > reach ? centre - reach : place.begin;
        const std::uint32_t ceiling = place.end - centre > reach ? centre + reach : place.end;
        if (!s_.touch(lcp_ + floor, std::size_t{ceiling} - floor + (ceiling < counts_.entries ? 1 : 0)))
            return false;
        std::uint32_t low = centre, high = centre + 1;
        std::uint32_t longest = std::max(place.left, place.right);  // length of the next level
        std::uint32_t wanted = longest;                             // length that the next level has to cover
        std::uint32_t hub = kNoHub;
        while (wanted > 0 && view.size < kMaxLevels) {
            SegmentLevel level;
            std::uint32_t shorter = 0;  // the longest length with a larger interval
            if (hub == kNoHub) {
                std::uint32_t least = longest;
                low = run_down(lcp_, low, floor, wanted, least);
                high = run_up(lcp_, high, ceiling, wanted, least);
                if (high - low >= counts_.hub_min) {
                    hub = this->hub_around(centre);
                    if (hub == kNoHub) return false;
                } else {
                    level = SegmentLevel{low, high, kNoHub, least};
                    if (low > place.begin) shorter = lcp_[low];
                    if (high < place.end) shorter = std::max<std::uint32_t>(shorter, lcp_[high]);
                }
            }
            if (hub != kNoHub) {
                std::uint32_t parent = hubs_[hub].parent;
                while (parent != kNoHub && this->valid(parent) && hubs_[parent].depth >= wanted) {
                    hub = parent;
                    parent = hubs_[hub].parent;
                }
                const std::uint32_t depth = hubs_[hub].depth;
                if (depth < wanted || (parent != kNoHub && !this->valid(parent))) return false;
                level = SegmentLevel{s_.template values<std::uint32_t>(Column::hub_start)[hub],
                                     hubs_[hub].end, hub, std::min(depth, longest)};
                if (level.begin >= level.end || level.end > counts_.entries) return false;
                if (parent != kNoHub) shorter = hubs_[parent].depth;
            }
            if (shorter >= wanted) return false;  // guarantees termination on a damaged file
            longest = shorter;
            // Shorter levels contain the first live level, so they are live.
            if (view.size == 0 && !plain && s_.total(level) == 0) {
                wanted = longest;
                continue;
            }
            view.levels[view.size++] = level;
            wanted = order_of(orders, longest);
        }
        return true;
    }

  private:
    static constexpr std::uint32_t kCounted = 4096;  // entries that are counted instead of estimated

    // The estimated position of the contexts of `before` extended by `code`; kNoEntry: no hub has it. Nothing
    // is verified here: a damaged value makes a bad guess.
    std::uint32_t guess_from(const SegmentView& before, std::uint32_t code) const {
        if (code == 0 || before.size > kMaxLevels) return kNoEntry;
        for (const SegmentLevel& level : before.all()) {
            if (level.hub >= counts_.hubs || level.begin >= level.end || level.end > counts_.entries)
                continue;
            SegmentHub& hub = hubs_[level.hub];
            for (std::size_t k = 0; k < std::min<std::size_t>(hub.followers, kHubFollowers); ++k) {
                if (hub.code[k] != code || hub.target[k] == kNoEntry) continue;
                const std::uint32_t at = std::clamp(before.at, level.begin, level.end);
                const std::uint64_t all = level.end - level.begin, passed = at - level.begin;
                if (passed <= kCounted) return hub.target[k] + count(level.begin, at, code);
                return hub.target[k] + static_cast<std::uint32_t>(Base::load(hub.votes[k]) * passed / all);
            }
        }
        return kNoEntry;
    }

    std::uint32_t count(std::uint32_t begin, std::uint32_t end, std::uint32_t code) const {
        std::uint32_t found = 0;
        for (std::uint32_t e = begin; e < end; ++e) found += load_code<W>(this->next_, e) == code;
        return found;
    }
};

}  // namespace

void Segment::find(std::span<const Token> context, std::span<const int> orders, SegmentView& view,
                   const SegmentView* before) const {
    if (corrupt() || context.empty()) {
        view.size = 0;
        return;
    }
    const bool plain = unit_weights_.load(std::memory_order_acquire);
    if (!by_width(*this, [&]<std::uint32_t W>() {
            return Finder<W>(*this).find(context, orders, plain, before, view);
        }))
        mark_corrupt();
    if (corrupt()) view.size = 0;
}

}  // namespace suffixsvc
