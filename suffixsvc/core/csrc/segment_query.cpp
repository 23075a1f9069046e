#include <algorithm>
#include <limits>

#include "segment_search.h"

namespace suffixsvc {

namespace {

// Followers of a rung, counted. Room for every entry that is ever looked at for one rung.
class Tally {
  public:
    struct Row {
        std::uint32_t code;
        std::uint32_t votes;
        std::uint32_t newest;
    };

    explicit Tally(std::uint32_t entries) : hashed_(entries > kLinear) {
        if (hashed_) slots_.fill(0);
    }
    void add(std::uint32_t code, std::uint32_t votes, std::uint32_t position) {
        Row& row = rows_[find(code)];
        row.votes += votes;
        row.newest = std::max(row.newest, position);
    }
    // The strongest come first afterwards.
    std::span<const Row> strongest(std::size_t most) {
        const std::size_t kept = std::min<std::size_t>(most, size_);
        std::partial_sort(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(kept),
                          rows_.begin() + static_cast<std::ptrdiff_t>(size_), [](const Row& a, const Row& b) {
                              return a.votes != b.votes ? a.votes > b.votes : a.newest > b.newest;
                          });
        return {rows_.data(), kept};
    }

  private:
    static constexpr std::uint32_t kLinear = 16;
    static constexpr std::uint32_t kSlots = 2 * kExactEntries;

    std::size_t find(std::uint32_t code) {
        if (!hashed_) {
            for (std::size_t i = 0; i < size_; ++i)
                if (rows_[i].code == code) return i;
        } else {
            std::uint32_t at = code * 0x9E3779B1u % kSlots;
            for (; slots_[at] != 0; at = (at + 1) % kSlots)
                if (rows_[slots_[at] - 1u].code == code) return slots_[at] - 1u;
            slots_[at] = static_cast<std::uint16_t>(size_ + 1);
        }
        rows_[size_] = Row{code, 0, 0};
        return size_++;
    }

    bool hashed_;
    std::size_t size_ = 0;
    std::array<Row, kExactEntries> rows_;
    std::array<std::uint16_t, kSlots> slots_;
};

std::uint32_t scaled(std::uint64_t votes, std::uint64_t entries, std::uint64_t looked_at) {
    if (looked_at == 0 || entries == looked_at) return static_cast<std::uint32_t>(votes);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>((votes * entries + looked_at - 1) / looked_at,
                                                              std::numeric_limits<std::uint32_t>::max()));
}

std::uint32_t looked_at(const SegmentRung& rung) {
    const std::uint32_t size = rung.end - rung.begin;
    return size <= kExactEntries ? size : kSampledEntries;
}

// The largest order that is at most len; 0: none.
std::uint32_t order_of(std::span<const int> orders, std::uint32_t len) {
    std::uint32_t best = 0;
    for (int order : orders)
        if (order > 0 && static_cast<std::uint32_t>(order) <= len) best = static_cast<std::uint32_t>(order);
    return best;
}

}  // namespace

template <std::uint32_t W>
class SegmentReader : public SegmentSearch<W> {
  public:
    using Base = SegmentSearch<W>;
    using Base::counts_;
    using Base::lcp_;
    using Base::next_;
    using Base::order_;
    using Base::s_;
    using Base::text_;

    SegmentReader(const Segment& segment, SegmentHub* hubs, bool plain, bool stale)
        : Base(segment), hubs_(hubs), plain_(plain), stale_(stale) {}

    bool find(std::span<const Token> context, std::span<const int> orders, SegmentView& view) const {
        SegmentQuery query(context, s_.alphabet());
        typename Base::Place place;
        if (!this->locate(query, place)) return true;
        // Entries around the place, as far out as no hub is needed; their lcps are looked at in one window.
        const std::uint32_t centre = place.right >= place.left ? place.at : place.at - 1;
        const std::uint32_t reach = counts_.hub_min;
        const std::uint32_t floor = centre - place.begin > reach ? centre - reach : place.begin;
        const std::uint32_t ceiling = place.end - centre > reach ? centre + reach : place.end;
        if (!s_.touch(lcp_ + floor, std::size_t{ceiling} - floor + (ceiling < counts_.entries ? 1 : 0)))
            return false;
        std::uint32_t low = centre, high = centre + 1;
        std::uint32_t longest = std::max(place.left, place.right);  // that the next rung may have
        std::uint32_t wanted = longest;                             // the length it is looked up by
        std::uint32_t hub = kNoHub;
        while (wanted > 0 && view.size < kMostRungs) {
            SegmentRung rung;
            std::uint32_t shorter;  // the longest length that has a larger interval
            if (hub == kNoHub) {
                std::uint32_t least = longest;
                while (low > floor && lcp_[low] >= wanted)
                    least = std::min<std::uint32_t>(least, lcp_[low--]);
                while (high < ceiling && lcp_[high] >= wanted)
                    least = std::min<std::uint32_t>(least, lcp_[high++]);
                if (high - low >= counts_.hub_min) {
                    hub = this->hub_around(centre);
                    if (hub == kNoHub) return false;
                } else {
                    rung = SegmentRung{low, high, kNoHub, least};
                    shorter = std::max<std::uint32_t>(low > place.begin ? lcp_[low] : 0,
                                                      high < place.end ? lcp_[high] : 0);
                }
            }
            if (hub != kNoHub) {
                std::uint32_t parent = hubs_[hub].parent;
                while (parent != kNoHub && this->valid(parent) && hubs_[parent].depth >= wanted) {
                    if (hubs_[parent].depth >= hubs_[hub].depth) return false;
                    hub = parent;
                    parent = hubs_[hub].parent;
                }
                if (hubs_[hub].depth < wanted || (parent != kNoHub && !this->valid(parent))) return false;
                rung = SegmentRung{s_.template values<std::uint32_t>(Column::hub_start)[hub], hubs_[hub].end,
                                   hub, std::min<std::uint32_t>(hubs_[hub].depth, longest)};
                shorter = parent == kNoHub ? 0 : std::min<std::uint32_t>(hubs_[parent].depth, longest - 1);
            }
            longest = shorter;
            // Below the first rung that is alive all are.
            if (view.size == 0 && !plain_ && total(rung) == 0) {
                wanted = longest;
                continue;
            }
            view.rungs[view.size++] = rung;
            wanted = order_of(orders, longest);
        }
        return true;
    }

    std::uint32_t total(const SegmentRung& rung) const {
        if (rung.hub != kNoHub && !stale_) return Base::load(hubs_[rung.hub].total);
        if (plain_) return rung.end - rung.begin;
        std::uint64_t votes = 0;
        if (!scan(rung, [&](std::uint32_t, std::uint32_t, std::uint32_t weight) { votes += weight; }))
            return 0;
        return scaled(votes, rung.end - rung.begin, looked_at(rung));
    }

    std::size_t strongest(const SegmentRung& rung, std::span<SegmentFollower> out) const {
        std::size_t n = 0;
        if (rung.hub != kNoHub && !stale_) {
            // Forgetting may have changed which is the strongest: in order of what is left.
            SegmentHub& h = hubs_[rung.hub];
            for (std::size_t k = 0; k < h.followers; ++k) {
                const std::uint32_t votes = Base::load(h.votes[k]);
                if (votes == 0 || !known(h.code[k])) continue;
                std::size_t at = n;
                while (at > 0 && out[at - 1].votes < votes) --at;
                if (at >= out.size()) continue;
                n = std::min(n + 1, out.size());
                for (std::size_t m = n - 1; m > at; --m) out[m] = out[m - 1];
                out[at] = SegmentFollower{s_.alphabet().id(h.code[k]), votes};
            }
            if (n > 0) return n;
        }
        const std::uint32_t entries = looked_at(rung);
        Tally tally(entries);
        if (!scan(rung, [&](std::uint32_t code, std::uint32_t position, std::uint32_t weight) {
                tally.add(code, weight, position);
            }))
            return 0;
        for (const Tally::Row& row : tally.strongest(out.size())) {
            if (!known(row.code)) return 0;
            out[n++] = SegmentFollower{s_.alphabet().id(row.code),
                                       scaled(row.votes, rung.end - rung.begin, entries)};
        }
        return n;
    }

    std::uint32_t votes(const SegmentView& view, std::size_t i, std::uint32_t code) const {
        const SegmentRung& rung = view.rungs[i];
        if (rung.hub != kNoHub && !stale_) {
            SegmentHub& h = hubs_[rung.hub];
            for (std::size_t k = 0; k < h.followers; ++k)
                if (h.code[k] == code) return Base::load(h.votes[k]);
            if (i == 0 || h.followers < kHubFollowers) return 0;
            return std::min(votes(view, i - 1, code), Base::load(h.total));
        }
        const std::uint32_t size = rung.end - rung.begin;
        std::uint64_t found = 0;
        if (plain_ && size <= kExactEntries) {
            if (!s_.touch(next_ + std::size_t{rung.begin} * W, std::size_t{size} * W)) return 0;
            for (std::uint32_t e = rung.begin; e < rung.end; ++e) found += load_code<W>(next_, e) == code;
            return static_cast<std::uint32_t>(found);
        }
        if (!scan(rung, [&](std::uint32_t c, std::uint32_t, std::uint32_t weight) {
                found += c == code ? weight : 0;
            }))
            return 0;
        return scaled(found, size, looked_at(rung));
    }

    SegmentNewest newest(const SegmentRung& rung) const {
        std::uint32_t best = 0;
        if (rung.hub != kNoHub) {
            best = Base::load(hubs_[rung.hub].newest);
            if (best >= counts_.text) {
                s_.mark_corrupt();
                return {};
            }
            if (best != 0 && s_.weight(s_.text_map().at(best)) == 0) best = 0;  // not settled yet
        }
        if (best == 0 && !scan(rung, [&](std::uint32_t, std::uint32_t position, std::uint32_t) {
                best = std::max(best, position);
            }))
            return {};
        if (best == 0) return {};
        if (!s_.touch(text_ + std::uint64_t{best} * W, W)) return {};
        const std::uint32_t code = load_code<W>(text_, best);
        if (!known(code)) return {};
        return {s_.alphabet().id(code),
                s_.template values<std::uint64_t>(Column::text_age)[s_.text_map().at(best)], best};
    }

  private:
    bool known(std::uint32_t code) const {
        if (code >= 1 && code <= counts_.alphabet) return true;
        s_.mark_corrupt();
        return false;
    }

    // f(code, position, weight) for the entries of a rung that are not forgotten: all of a small one, evenly
    // spaced ones of a large one. False: broken.
    template <typename F>
    bool scan(const SegmentRung& rung, F f) const {
        const std::uint64_t size = rung.end - rung.begin;
        const std::uint32_t entries = looked_at(rung);
        if (entries == size && !s_.touch(next_ + std::size_t{rung.begin} * W, size * W)) return false;
        for (std::uint32_t k = 0; k < entries; ++k) {
            const std::uint32_t e =
                entries == size ? rung.begin + k
                                : rung.begin + static_cast<std::uint32_t>((2 * k + 1) * size / (2 * entries));
            std::uint32_t position;
            if (!this->position(e, position)) return false;
            if (entries != size && !s_.touch(next_ + std::size_t{e} * W, W)) return false;
            const std::uint32_t weight = plain_ ? 1 : s_.weight(s_.text_map().at(position));
            if (weight > 0) f(load_code<W>(next_, e), position, weight);
        }
        return true;
    }

    SegmentHub* hubs_;
    bool plain_;
    bool stale_;
};

template <typename F>
auto Segment::read(F f) const {
    return by_width(*this, [&]<std::uint32_t W>() {
        return f(SegmentReader<W>(*this, hubs_, plain_.load(std::memory_order_acquire),
                                  stale_.load(std::memory_order_acquire)));
    });
}

void Segment::find(std::span<const Token> context, std::span<const int> orders, SegmentView& view) const {
    view.size = 0;
    if (corrupt() || context.empty()) return;
    if (!read([&](const auto& reader) { return reader.find(context, orders, view); })) mark_corrupt();
    if (corrupt()) view.size = 0;
}

std::uint32_t Segment::total(const SegmentRung& rung) const {
    if (corrupt()) return 0;
    return read([&](const auto& reader) { return reader.total(rung); });
}

std::size_t Segment::strongest(const SegmentRung& rung, std::span<SegmentFollower> out) const {
    if (corrupt() || out.empty()) return 0;
    return read([&](const auto& reader) {
        return reader.strongest(rung, out.first(std::min(out.size(), kMostFollowers)));
    });
}

std::uint32_t Segment::votes(const SegmentView& view, std::size_t i, Token token) const {
    const std::uint32_t code = corrupt() ? 0 : alphabet_.code(token);
    if (code == 0) return 0;
    return read([&](const auto& reader) { return reader.votes(view, i, code); });
}

SegmentNewest Segment::newest(const SegmentRung& rung) const {
    if (corrupt()) return {};
    return read([&](const auto& reader) { return reader.newest(rung); });
}

}  // namespace suffixsvc
