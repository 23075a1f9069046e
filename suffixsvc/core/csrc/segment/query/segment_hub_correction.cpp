// Subtracts forgotten texts from the counts of hubs.
#include "segment/query/segment_search.h"

namespace suffixsvc {

namespace {

template <std::uint32_t W>
class HubCorrector : public SegmentSearch<W> {
  public:
    using SegmentSearch<W>::SegmentSearch;

    // Subtracts one vote from every hub around the entry of a position.
    bool subtract(std::uint32_t position) const {
        std::array<std::uint32_t, kSegmentContext> codes;
        std::uint32_t n = 0;
        for (; n < kSegmentContext && n < position; ++n) {
            codes[n] = load_code<W>(this->text_, position - 1 - n);
            if (codes[n] == 0) break;
        }
        if (n == 0) return true;  // no hub contains the empty context
        const auto buckets = this->s_.template values<std::uint32_t>(Column::buckets);
        if (codes[0] + 1 >= buckets.size()) return false;
        if (buckets[codes[0] + 1] - buckets[codes[0]] < this->counts_.hub_min) return true;
        SegmentQuery query(std::span<const std::uint32_t>(codes.data(), n));
        typename SegmentSearch<W>::Place place;
        if (!this->locate(query, kNoEntry, place) || place.at == place.end) return false;
        const std::uint32_t code = load_code<W>(this->text_, position);
        for (std::uint32_t hub = this->hub_around(place.at); hub != kNoHub && this->valid(hub);
             hub = this->hubs_[hub].parent) {
            SegmentHub& h = this->hubs_[hub];
            lower(h.total);
            for (std::size_t k = 0; k < h.followers; ++k)
                if (h.code[k] == code) lower(h.votes[k]);
            if (h.newest != 0 && forgotten(h.newest) && !find_newest(hub, h)) return false;
        }
        return true;
    }

  private:
    bool forgotten(std::uint32_t position) const {
        return position >= this->counts_.text || this->s_.weight(this->s_.text_map().at(position)) == 0;
    }

    // Scans the whole hub, once each time that its newest text was forgotten; 0 if all are forgotten.
    bool find_newest(std::uint32_t hub, SegmentHub& h) const {
        std::uint32_t best = 0;
        for (std::uint32_t e = this->s_.template values<std::uint32_t>(Column::hub_start)[hub]; e < h.end;
             ++e) {
            std::uint32_t p;
            if (!this->position(e, p)) return false;
            if (p > best && !forgotten(p)) best = p;
        }
        std::atomic_ref<std::uint32_t>(h.newest).store(best, std::memory_order_relaxed);
        return true;
    }

    static void lower(std::uint32_t& votes) {
        const std::atomic_ref<std::uint32_t> shared(votes);
        const std::uint32_t now = shared.load(std::memory_order_relaxed);
        if (now > 0) shared.store(now - 1, std::memory_order_relaxed);
    }
};

}  // namespace

void Segment::subtract_from_hubs(std::uint32_t text) {
    const auto starts = values<std::uint32_t>(Column::text_start);
    const std::uint32_t begin = starts[text], end = starts[text + 1];
    const std::uint32_t context = values<std::uint8_t>(Column::text_context)[text];
    const std::uint32_t before = std::min(begin, kSegmentContext);
    const std::uint64_t width = counts().code_bytes;
    bool ok = begin < end && end <= counts().text &&
              touch(column(Column::text) + (begin - before) * width, (end - begin + before) * width);
    by_width(*this, [&]<std::uint32_t W>() {
        const HubCorrector<W> corrector(*this);
        for (std::uint32_t p = begin + context; ok && p + 1 < end; ++p) ok = corrector.subtract(p);
    });
    if (!ok) mark_corrupt();
}

}  // namespace suffixsvc
