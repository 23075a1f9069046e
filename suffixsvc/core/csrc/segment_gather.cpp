#include <algorithm>

#include "segment_search.h"
#include "segment_tally.h"

namespace suffixsvc {

template <std::uint32_t W>
class SegmentGatherer : public SegmentSearch<W> {
  public:
    using Base = SegmentSearch<W>;
    using Base::counts_, Base::next_, Base::order_, Base::s_, Base::text_;

    SegmentGatherer(const Segment& segment, SegmentHub* hubs, bool plain, bool stale)
        : Base(segment), hubs_(hubs), plain_(plain), stale_(stale) {}

    std::uint32_t total(const SegmentRung& rung) const {
        if (kind_of(rung) == Kind::hub) return Base::load(hubs_[rung.hub].total);
        if (plain_) return rung.end - rung.begin;
        std::uint64_t votes = 0, looked = 0;
        if (!scan(rung, kExactEntries, looked,
                  [&](std::uint32_t, std::uint32_t, std::uint32_t weight) { votes += weight; }))
            return 0;
        return scaled(votes, rung, looked);
    }

    bool gather(const SegmentView& view, std::size_t width, SegmentEvidence& out) const {
        out.size = 0;
        std::array<std::uint32_t, kMostCandidates> codes;
        std::array<Listed, kMostRungs> lists;
        std::size_t exact = 0;  // rungs that are counted: the first ones
        while (exact < view.size && kind_of(view.rungs[exact]) == Kind::exact) ++exact;
        Tally tally(exact > 0 ? view.rungs[exact - 1].end - view.rungs[exact - 1].begin : 0);
        for (std::size_t r = 0; r < view.size; ++r) {
            const SegmentRung& rung = view.rungs[r];
            Top<kMostWidth> top(width);
            std::uint32_t newest = r > 0 ? out.newest[r - 1] : 0;
            if (r < exact) {
                std::uint64_t more = r > 0 ? out.total[r - 1] : 0;
                if (!visit_new(view, r,
                               [&](std::uint32_t code, std::uint32_t position, std::uint32_t weight) {
                                   tally.add(code, position, weight, r);
                                   more += weight;
                                   newest = std::max(newest, position);
                               }))
                    return false;
                out.total[r] = saturated(more);
                for (const Tally::Row& row : tally.rows()) top.show(row.code, row.votes, row.newest);
            } else {
                Listed& list = lists[r];
                if (!list_followers(rung, list)) return false;
                out.total[r] = total(rung);
                for (std::uint32_t i = 0; i < list.size; ++i)
                    top.show(list.code[i], list.votes[i], list.newest[i]);
                const std::uint32_t remembered = newest_of_hub(rung);
                if (remembered == kBroken) return false;
                newest = std::max(newest, remembered);
                if (remembered == 0 && !list.hub)
                    for (std::uint32_t i = 0; i < list.size; ++i) newest = std::max(newest, list.newest[i]);
            }
            out.newest[r] = newest;
            out.strongest_size[r] = 0;
            for (std::uint32_t code : top.codes()) {
                std::size_t c = 0;
                while (c < out.size && codes[c] != code) ++c;
                if (c == out.size) {
                    if (c == kMostCandidates) break;
                    if (!known(code)) return false;
                    codes[c] = code;
                    out.token[c] = s_.alphabet().id(code);
                    ++out.size;
                }
                out.strongest[r][out.strongest_size[r]++] = static_cast<std::uint8_t>(c);
            }
        }
        for (std::size_t c = 0; c < out.size; ++c) {
            const Tally::Row* row = tally.row(codes[c]);
            std::uint32_t votes = 0;
            for (std::size_t r = 0; r < exact; ++r) out.votes[c][r] = votes += row ? row->added[r] : 0;
            for (std::size_t r = exact; r < view.size; ++r)
                out.votes[c][r] = votes = from_list(view.rungs[r], lists[r], codes[c], votes);
        }
        return true;
    }

    bool votes(const SegmentView& view, std::uint32_t code, std::span<std::uint32_t> out) const {
        std::uint32_t votes = 0;
        for (std::size_t r = 0; r < view.size; ++r) {
            const SegmentRung& rung = view.rungs[r];
            if (kind_of(rung) == Kind::exact) {
                if (!count_new(view, r, code, votes)) return false;
            } else {
                Listed list;
                if (!list_followers(rung, list)) return false;
                votes = from_list(rung, list, code, votes);
            }
            out[r] = votes;
        }
        return true;
    }

    SegmentNewest newest(const SegmentRung& rung) const {
        std::uint32_t best = newest_of_hub(rung);
        if (best == kBroken) return {};
        std::uint64_t looked = 0;
        if (best == 0 &&
            !scan(rung, kExactEntries, looked, [&](std::uint32_t, std::uint32_t position, std::uint32_t) {
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

    // 0: not found; kBroken: broken.
    std::uint32_t newest_of(const SegmentRung& rung, std::uint32_t code) const {
        std::uint32_t best = newest_of_hub(rung);
        if (best == kBroken) return best;
        if (best != 0) {
            if (!s_.touch(text_ + std::uint64_t{best} * W, W)) return kBroken;
            if (load_code<W>(text_, best) == code) return best;
            best = 0;
        }
        std::uint64_t looked = 0;
        const bool ok = scan(rung, kExactEntries, looked,
                             [&](std::uint32_t found, std::uint32_t position, std::uint32_t) {
                                 if (found == code) best = std::max(best, position);
                             });
        return ok ? best : kBroken;
    }

    // 0: none; kBroken: broken.
    std::uint32_t code_at(std::uint32_t position) const {
        if (position == 0 || position >= counts_.text) return 0;
        if (!s_.touch(text_ + std::uint64_t{position} * W, W)) return kBroken;
        const std::uint32_t code = load_code<W>(text_, position);
        if (code == 0 || (!plain_ && s_.weight(s_.text_map().at(position)) == 0)) return 0;
        return known(code) ? code : kBroken;
    }

    static constexpr std::uint32_t kBroken = 0xFFFFFFFFu;

  private:
    enum class Kind { exact, sampled, hub };

    // The position that a hub remembers; 0 where the rung is none, or that was forgotten and is not settled
    // yet; kBroken.
    std::uint32_t newest_of_hub(const SegmentRung& rung) const {
        if (rung.hub == kNoHub) return 0;
        const std::uint32_t best = Base::load(hubs_[rung.hub].newest);
        if (best >= counts_.text) {
            s_.mark_corrupt();
            return kBroken;
        }
        return best != 0 && s_.weight(s_.text_map().at(best)) == 0 ? 0 : best;
    }

    // Longer rungs have fewer entries: the exact ones of a view come first.
    Kind kind_of(const SegmentRung& rung) const {
        if (rung.hub != kNoHub && !stale_) return Kind::hub;
        return rung.end - rung.begin <= kExactEntries ? Kind::exact : Kind::sampled;
    }

    bool known(std::uint32_t code) const {
        if (code >= 1 && code <= counts_.alphabet) return true;
        s_.mark_corrupt();
        return false;
    }

    // f(code, position, weight) for the entries [begin, end) that are not forgotten. False: broken.
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
            const std::uint32_t weight = plain_ ? 1 : s_.weight(s_.text_map().at(position));
            if (weight > 0) f(load_code<W>(next_, e), position, weight);
        }
        return true;
    }

    // The same for all entries of a small rung, for evenly spaced ones of a large one.
    template <typename F>
    bool scan(const SegmentRung& rung, std::uint32_t all_up_to, std::uint64_t& looked, F f) const {
        const std::uint64_t size = rung.end - rung.begin;
        looked = size <= all_up_to ? size : kSampledEntries;
        if (looked == size) return visit(rung.begin, rung.end, f);
        for (std::uint64_t k = 0; k < looked; ++k) {
            const auto e = rung.begin + static_cast<std::uint32_t>((2 * k + 1) * size / (2 * looked));
            if (!visit(e, e + 1, f)) return false;
        }
        return true;
    }

    static std::uint32_t scaled(std::uint64_t votes, const SegmentRung& rung, std::uint64_t looked) {
        const std::uint64_t size = rung.end - rung.begin;
        return looked == size || looked == 0 ? saturated(votes)
                                             : saturated((votes * size + looked - 1) / looked);
    }

    // Entries of an exact rung that the one before it does not have.
    template <typename F>
    bool visit_new(const SegmentView& view, std::size_t r, F f) const {
        const SegmentRung& rung = view.rungs[r];
        if (r == 0) return visit(rung.begin, rung.end, f);
        const SegmentRung& inner = view.rungs[r - 1];
        return inner.begin >= rung.begin && inner.end <= rung.end && visit(rung.begin, inner.begin, f) &&
               visit(inner.end, rung.end, f);
    }

    bool count_new(const SegmentView& view, std::size_t r, std::uint32_t code, std::uint32_t& votes) const {
        if (!plain_)
            return visit_new(view, r, [&](std::uint32_t c, std::uint32_t, std::uint32_t weight) {
                votes += c == code ? weight : 0;
            });
        const SegmentRung& rung = view.rungs[r];
        if (!s_.touch(next_ + std::size_t{rung.begin} * W, std::size_t{rung.end - rung.begin} * W))
            return false;
        std::uint32_t found = 0;
        for (std::uint32_t e = rung.begin; e < rung.end; ++e) found += load_code<W>(next_, e) == code;
        votes = found;
        return true;
    }

    // What a hub knows; samples of a rung that is none, and where all that a hub knew is forgotten.
    bool list_followers(const SegmentRung& rung, Listed& out) const {
        out.size = 0;
        if (kind_of(rung) == Kind::hub) {
            SegmentHub& h = hubs_[rung.hub];
            std::uint64_t left = 0;
            for (; out.size < h.followers; ++out.size) {
                out.code[out.size] = h.code[out.size];
                left += out.votes[out.size] = Base::load(h.votes[out.size]);
                out.newest[out.size] = kHubFollowers - out.size;  // of equal ones the newer comes first
            }
            out.hub = left > 0 || Base::load(h.total) == 0;
            if (out.hub) return true;
            out.size = 0;
        }
        return scan(rung, kSampledEntries, out.looked,
                    [&](std::uint32_t code, std::uint32_t position, std::uint32_t weight) {
                        out.add(code, position, weight);
                    });
    }

    // Votes of a code in a listed rung; `longer`: in the next longer rung, which are some of them.
    std::uint32_t from_list(const SegmentRung& rung, const Listed& list, std::uint32_t code,
                            std::uint32_t longer) const {
        const std::uint32_t found = list.of(code);
        if (!list.hub) return found == Listed::kNoVotes ? 0 : scaled(found, rung, list.looked);
        if (found != Listed::kNoVotes) return found;
        return list.size < kHubFollowers ? 0 : std::min(longer, Base::load(hubs_[rung.hub].total));
    }

    SegmentHub* hubs_;
    bool plain_;
    bool stale_;
};

template <typename F>
auto Segment::read(F f) const {
    return by_width(*this, [&]<std::uint32_t W>() {
        return f(SegmentGatherer<W>(*this, hubs_, plain_.load(std::memory_order_acquire),
                                    stale_.load(std::memory_order_acquire)));
    });
}

void Segment::gather(const SegmentView& view, std::size_t width, SegmentEvidence& out) const {
    out.size = 0;
    const bool ok =
        !corrupt() && read([&](const auto& g) { return g.gather(view, std::min(width, kMostWidth), out); });
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

std::uint32_t Segment::total(const SegmentRung& rung) const {
    if (corrupt()) return 0;
    return read([&](const auto& g) { return g.total(rung); });
}

SegmentNewest Segment::newest(const SegmentRung& rung) const {
    if (corrupt()) return {};
    return read([&](const auto& g) { return g.newest(rung); });
}

std::uint32_t Segment::newest_of(const SegmentRung& rung, Token token) const {
    const std::uint32_t code = corrupt() ? 0 : alphabet_.code(token);
    if (code == 0) return 0;
    const std::uint32_t position = read([&](const auto& g) { return g.newest_of(rung, code); });
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
