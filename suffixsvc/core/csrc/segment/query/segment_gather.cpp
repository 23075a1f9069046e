#include <algorithm>

#include "segment/query/segment_followers.h"
#include "segment/query/segment_search.h"

namespace suffixsvc {

template <std::uint32_t W>
class SegmentGatherer : public SegmentSearch<W> {
  public:
    using Base = SegmentSearch<W>;
    using Base::counts_, Base::hubs_, Base::next_, Base::order_, Base::s_, Base::text_;

    SegmentGatherer(const Segment& segment, bool plain, bool stale)
        : Base(segment), unit_weights_(plain), hubs_stale_(stale) {}

    std::uint32_t total(const SegmentLevel& level) const {
        if (kind_of(level) == Kind::hub) return Base::load(hubs_[level.hub].total);
        if (unit_weights_) return level.end - level.begin;
        std::uint64_t votes = 0, entries_read = 0;
        if (!scan(level, kExactEntries, entries_read,
                  [&](std::uint32_t, std::uint32_t, std::uint32_t weight) { votes += weight; }))
            return 0;
        return scaled(votes, level, entries_read);
    }

    bool gather(const SegmentView& view, std::size_t width, SegmentEvidence& out) const {
        out.size = 0;
        std::array<std::uint32_t, kMaxCandidates> codes;
        std::array<FollowerList, kMaxLevels> lists;
        std::size_t exact = 0;  // the first levels, which are counted exactly
        while (exact < view.size && kind_of(view.levels[exact]) == Kind::exact) ++exact;
        FollowerCounts counts(exact > 0 ? view.levels[exact - 1].end - view.levels[exact - 1].begin : 0);
        for (std::size_t r = 0; r < view.size; ++r) {
            const SegmentLevel& level = view.levels[r];
            TopFollowers<kMaxWidth> top(width);
            std::uint32_t newest = r > 0 ? out.newest[r - 1] : 0;
            if (r < exact) {
                std::uint64_t more = r > 0 ? out.total[r - 1] : 0;
                if (!visit_new(view, r,
                               [&](std::uint32_t code, std::uint32_t position, std::uint32_t weight) {
                                   counts.add(code, position, weight, r);
                                   more += weight;
                                   newest = std::max(newest, position);
                               }))
                    return false;
                out.total[r] = saturated(more);
                // A row without new votes is among the strongest only if it was in the level before.
                counts.for_each_touched(
                    [&](const FollowerCounts::Row& row) { top.offer(row.code, row.votes, row.newest); });
                for (std::size_t i = 0; r > 0 && i < out.strongest_size[r - 1]; ++i) {
                    const FollowerCounts::Row& row = *counts.row(codes[out.strongest[r - 1][i]]);
                    if (row.added[r] == 0) top.offer(row.code, row.votes, row.newest);
                }
            } else {
                FollowerList& list = lists[r];
                if (!list_followers(level, list)) return false;
                out.total[r] = total(level);
                for (std::uint32_t i = 0; i < list.size; ++i)
                    top.offer(list.code[i], list.votes[i], list.newest[i]);
                const std::uint32_t hub_newest = newest_of_hub(level);
                if (hub_newest == kBroken) return false;
                newest = std::max(newest, hub_newest);
                if (hub_newest == 0 && !list.hub)
                    for (std::uint32_t i = 0; i < list.size; ++i) newest = std::max(newest, list.newest[i]);
            }
            out.newest[r] = newest;
            out.strongest_size[r] = 0;
            for (std::uint32_t code : top.codes()) {
                std::size_t c = 0;
                while (c < out.size && codes[c] != code) ++c;
                if (c == out.size) {
                    if (c == kMaxCandidates) break;
                    if (!valid_code(code)) return false;
                    codes[c] = code;
                    out.token[c] = s_.alphabet().id(code);
                    ++out.size;
                }
                out.strongest[r][out.strongest_size[r]++] = static_cast<std::uint8_t>(c);
            }
        }
        for (std::size_t c = 0; c < out.size; ++c) {
            const FollowerCounts::Row* row = counts.row(codes[c]);
            std::uint32_t votes = 0;
            for (std::size_t r = 0; r < exact; ++r) out.votes[c][r] = votes += row ? row->added[r] : 0;
            for (std::size_t r = exact; r < view.size; ++r)
                out.votes[c][r] = votes = from_list(view.levels[r], lists[r], codes[c], votes);
        }
        return true;
    }

    bool votes(const SegmentView& view, std::uint32_t code, std::span<std::uint32_t> out) const {
        std::uint32_t votes = 0;
        for (std::size_t r = 0; r < view.size; ++r) {
            const SegmentLevel& level = view.levels[r];
            if (kind_of(level) == Kind::exact) {
                if (!count_new(view, r, code, votes)) return false;
            } else {
                FollowerList list;
                if (!list_followers(level, list)) return false;
                votes = from_list(level, list, code, votes);
            }
            out[r] = votes;
        }
        return true;
    }

    // 0: not found; kBroken: damaged.
    std::uint32_t newest_of(const SegmentLevel& level, std::uint32_t code) const {
        std::uint32_t best = newest_of_hub(level);
        if (best == kBroken) return best;
        if (best != 0) {
            if (!s_.touch(text_ + std::uint64_t{best} * W, W)) return kBroken;
            if (load_code<W>(text_, best) == code) return best;
            best = 0;
        }
        std::uint64_t entries_read = 0;
        const bool ok = scan(level, kExactEntries, entries_read,
                             [&](std::uint32_t found, std::uint32_t position, std::uint32_t) {
                                 if (found == code) best = std::max(best, position);
                             });
        return ok ? best : kBroken;
    }

    // 0: none; kBroken: damaged.
    std::uint32_t code_at(std::uint32_t position) const {
        if (position == 0 || position >= counts_.text) return 0;
        if (!s_.touch(text_ + std::uint64_t{position} * W, W)) return kBroken;
        const std::uint32_t code = load_code<W>(text_, position);
        if (code == 0 || (!unit_weights_ && s_.weight(s_.text_map().at(position)) == 0)) return 0;
        return valid_code(code) ? code : kBroken;
    }

    static constexpr std::uint32_t kBroken = 0xFFFFFFFFu;

  private:
    enum class Kind { exact, sampled, hub };

    // The newest position of a hub; 0 if the level is not a hub, or if that position was forgotten and the
    // hub was not corrected yet; or kBroken.
    std::uint32_t newest_of_hub(const SegmentLevel& level) const {
        if (level.hub == kNoHub) return 0;
        const std::uint32_t best = Base::load(hubs_[level.hub].newest);
        if (best >= counts_.text) {
            s_.mark_corrupt();
            return kBroken;
        }
        return best != 0 && s_.weight(s_.text_map().at(best)) == 0 ? 0 : best;
    }

    // Longer levels have fewer entries: the exact ones of a view come first.
    Kind kind_of(const SegmentLevel& level) const {
        if (level.hub != kNoHub && !hubs_stale_) return Kind::hub;
        return level.end - level.begin <= kExactEntries ? Kind::exact : Kind::sampled;
    }

    bool valid_code(std::uint32_t code) const {
        if (code >= 1 && code <= counts_.alphabet) return true;
        s_.mark_corrupt();
        return false;
    }

    // Calls f(code, position, weight) for the entries [begin, end) that are not forgotten. False: damaged.
    template <typename F>
    bool visit(std::uint32_t begin, std::uint32_t end, F f) const {
        if (begin == end) return true;
        if (!s_.touch(next_ + std::size_t{begin} * W, std::size_t{end - begin} * W) ||
            !s_.touch(order_ + std::size_t{begin} * 4, std::size_t{end - begin} * 4))
            return false;
        for (std::uint32_t e = begin; e < end; ++e) {
            std::uint32_t position;
            std::memcpy(&position, order_ + std::size_t{e} * 4, 4);
            if (position >= counts_.text) {
                s_.mark_corrupt();
                return false;
            }
            const std::uint32_t weight = unit_weights_ ? 1 : s_.weight(s_.text_map().at(position));
            if (weight > 0) f(load_code<W>(next_, e), position, weight);
        }
        return true;
    }

    // The same for all entries of a small level, and for evenly spaced ones of a large one.
    template <typename F>
    bool scan(const SegmentLevel& level, std::uint32_t all_up_to, std::uint64_t& entries_read, F f) const {
        const std::uint64_t size = level.end - level.begin;
        entries_read = size <= all_up_to ? size : kSampledEntries;
        if (entries_read == size) return visit(level.begin, level.end, f);
        for (std::uint64_t k = 0; k < entries_read; ++k) {
            const auto e = level.begin + static_cast<std::uint32_t>((2 * k + 1) * size / (2 * entries_read));
            if (!visit(e, e + 1, f)) return false;
        }
        return true;
    }

    static std::uint32_t scaled(std::uint64_t votes, const SegmentLevel& level, std::uint64_t entries_read) {
        const std::uint64_t size = level.end - level.begin;
        return entries_read == size || entries_read == 0
                   ? saturated(votes)
                   : saturated((votes * size + entries_read - 1) / entries_read);
    }

    // Entries of an exact level that the level before it does not have.
    template <typename F>
    bool visit_new(const SegmentView& view, std::size_t r, F f) const {
        const SegmentLevel& level = view.levels[r];
        if (r == 0) return visit(level.begin, level.end, f);
        const SegmentLevel& inner = view.levels[r - 1];
        return inner.begin >= level.begin && inner.end <= level.end && visit(level.begin, inner.begin, f) &&
               visit(inner.end, level.end, f);
    }

    bool count_new(const SegmentView& view, std::size_t r, std::uint32_t code, std::uint32_t& votes) const {
        if (!unit_weights_)
            return visit_new(view, r, [&](std::uint32_t c, std::uint32_t, std::uint32_t weight) {
                votes += c == code ? weight : 0;
            });
        const SegmentLevel& level = view.levels[r];
        if (!s_.touch(next_ + std::size_t{level.begin} * W, std::size_t{level.end - level.begin} * W))
            return false;
        std::uint32_t found = 0;
        for (std::uint32_t e = level.begin; e < level.end; ++e) found += load_code<W>(next_, e) == code;
        votes = found;
        return true;
    }

    // The followers of a hub; samples if the level is not a hub, or if all followers of the hub
    // are forgotten.
    bool list_followers(const SegmentLevel& level, FollowerList& out) const {
        out.size = 0;
        if (kind_of(level) == Kind::hub) {
            SegmentHub& h = hubs_[level.hub];
            std::uint64_t left = 0;
            for (; out.size < h.followers; ++out.size) {
                out.code[out.size] = h.code[out.size];
                left += out.votes[out.size] = Base::load(h.votes[out.size]);
                // preserves the order of equal ones, the newer first
                out.newest[out.size] = kHubFollowers - out.size;
            }
            out.hub = left > 0 || Base::load(h.total) == 0;
            if (out.hub) return true;
            out.size = 0;
        }
        return scan(level, kSampledEntries, out.entries_read,
                    [&](std::uint32_t code, std::uint32_t position, std::uint32_t weight) {
                        out.add(code, position, weight);
                    });
    }

    // Votes of a code in a listed level; `longer`: its votes in the next longer level, a lower bound.
    std::uint32_t from_list(const SegmentLevel& level, const FollowerList& list, std::uint32_t code,
                            std::uint32_t longer) const {
        const std::uint32_t found = list.of(code);
        if (!list.hub) return found == FollowerList::kNoVotes ? 0 : scaled(found, level, list.entries_read);
        if (found != FollowerList::kNoVotes) return found;
        return list.size < kHubFollowers ? 0 : std::min(longer, Base::load(hubs_[level.hub].total));
    }

    bool unit_weights_;
    bool hubs_stale_;
};

template <typename F>
auto Segment::read(F f) const {
    return by_width(*this, [&]<std::uint32_t W>() {
        return f(SegmentGatherer<W>(*this, unit_weights_.load(std::memory_order_acquire),
                                    hubs_stale_.load(std::memory_order_acquire)));
    });
}

void Segment::gather(const SegmentView& view, std::size_t width, SegmentEvidence& out) const {
    out.size = 0;
    const bool ok =
        !corrupt() && read([&](const auto& g) { return g.gather(view, std::min(width, kMaxWidth), out); });
    if (!ok) {
        mark_corrupt();
        out.size = 0;
        out.total.fill(0);
        out.newest.fill(0);
        out.strongest_size.fill(0);
    }
}

void Segment::votes(const SegmentView& view, Token token, std::span<std::uint32_t> out) const {
    const std::uint32_t code = corrupt() ? 0 : alphabet_.code(token);
    if (code != 0 && !read([&](const auto& g) { return g.votes(view, code, out); })) mark_corrupt();
    if (code == 0 || corrupt()) std::fill(out.begin(), out.begin() + view.size, 0u);
}

std::uint32_t Segment::total(const SegmentLevel& level) const {
    if (corrupt()) return 0;
    return read([&](const auto& g) { return g.total(level); });
}

std::uint32_t Segment::newest_of(const SegmentLevel& level, Token token) const {
    const std::uint32_t code = corrupt() ? 0 : alphabet_.code(token);
    if (code == 0) return 0;
    const std::uint32_t position = read([&](const auto& g) { return g.newest_of(level, code); });
    if (position < counts().text) return position;
    mark_corrupt();
    return 0;
}

Token Segment::token_at(std::uint32_t position) const {
    if (corrupt()) return -1;
    const std::uint32_t code = read([&](const auto& g) { return g.code_at(position); });
    if (code <= counts().alphabet) return code == 0 ? -1 : alphabet_.id(code);
    mark_corrupt();
    return -1;
}

}  // namespace suffixsvc
