#include "slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace suffixsvc {

namespace {
constexpr std::size_t kMapped = 128 << 10;   // segments from here on come from the system directly
constexpr std::size_t kHugePages = 8 << 20;  // and from here on as large pages, where it has them
constexpr std::size_t kFewSpans = 64;        // not worth a system call; more than unmapped segments hold
}  // namespace

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
void Slab<kUnitBytes, kSpanUnits>::grow() {
    const std::size_t k = segments_.size();
    const std::size_t first = ((std::size_t{1} << k) - 1) * kSpanUnits;
    // The last unit is never handed out: all ones is no name.
    if (first + (std::size_t{kSpanUnits} << k) >= std::size_t{0xFFFFFFFFu} - kSpanUnits)
        throw std::bad_alloc();
    Segment segment{nullptr, kSpanBytes << k, (kSpanBytes << k) >= kMapped};
    if (segment.mapped) {
        void* p = mmap(nullptr, segment.bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        if (segment.bytes >= kHugePages) madvise(p, segment.bytes, MADV_HUGEPAGE);
        segment.data = static_cast<char*>(p);
    } else {
        segment.data = static_cast<char*>(std::malloc(segment.bytes));
        if (segment.data == nullptr) throw std::bad_alloc();
    }
    segments_.push_back(segment);
    room_ += std::size_t{1} << k;
    bases_[static_cast<std::size_t>(std::bit_width(kSpanUnits)) + k] =
        reinterpret_cast<std::uintptr_t>(segment.data) - first * kUnitBytes;
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
std::uint32_t Slab<kUnitBytes, kSpanUnits>::take_span() {
    for (auto* spare : {&free_resident_, &free_returned_})
        if (!spare->empty()) {
            const std::uint32_t s = spare->back();
            spare->pop_back();
            return s;
        }
    if (spans_.size() == room_) grow();
    spans_.emplace_back();
    return static_cast<std::uint32_t>(spans_.size() - 1);
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
void Slab<kUnitBytes, kSpanUnits>::link(std::uint32_t s) {
    Span& span = spans_[s];
    std::uint32_t& head = partial_[span.size_class];
    span.before = kNone;
    span.after = head;
    if (head != kNone) spans_[head].before = s;
    head = s;
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
void Slab<kUnitBytes, kSpanUnits>::unlink(std::uint32_t s) {
    const Span& span = spans_[s];
    (span.before == kNone ? partial_[span.size_class] : spans_[span.before].after) = span.after;
    if (span.after != kNone) spans_[span.after].before = span.before;
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
std::uint32_t Slab<kUnitBytes, kSpanUnits>::allocate(std::uint32_t units, std::uint32_t size_class) {
    std::uint32_t s = partial_[size_class];
    if (s == kNone) {
        s = take_span();
        spans_[s] = Span{};
        spans_[s].units = static_cast<std::uint16_t>(units);
        spans_[s].size_class = size_class;
        link(s);
    }
    Span& span = spans_[s];
    std::uint32_t unit = s * kSpanUnits;
    if (span.free != kNil) {
        unit += span.free;
        std::memcpy(&span.free, at(unit) + 4, sizeof span.free);
    } else {
        unit += span.fresh;
        span.fresh = static_cast<std::uint16_t>(span.fresh + units);
    }
    ++span.live;
    if (span.full()) unlink(s);
    return unit;
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
void Slab<kUnitBytes, kSpanUnits>::free(std::uint32_t unit) {
    const std::uint32_t s = unit / kSpanUnits;
    Span& span = spans_[s];
    const bool was_full = span.full();
    if (--span.live == 0) {
        if (!was_full) unlink(s);
        free_resident_.push_back(s);
        if (free_resident_.size() > std::max(kFewSpans, spans_.size() / 32)) give_back_spans();
        return;
    }
    std::memcpy(at(unit) + 4, &span.free, sizeof span.free);
    span.free = static_cast<std::uint16_t>(unit % kSpanUnits);
    if (was_full) link(s);
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
void Slab<kUnitBytes, kSpanUnits>::give_back_spans() {
    std::sort(free_resident_.begin(), free_resident_.end());
    std::vector<std::uint32_t> kept;
    for (std::size_t i = 0; i < free_resident_.size();) {
        const std::uint32_t first = free_resident_[i];
        const auto segment = static_cast<std::size_t>(std::bit_width(first + 1) - 1);
        const std::size_t end = (std::size_t{2} << segment) - 1;  // of the segment, in spans
        std::size_t n = 1;
        while (i + n < free_resident_.size() && free_resident_[i + n] == first + n && first + n < end) ++n;
        const bool returned =
            segments_[segment].mapped && madvise(at(first * kSpanUnits), n * kSpanBytes, MADV_DONTNEED) == 0;
        auto& to = returned ? free_returned_ : kept;
        for (std::size_t j = 0; j < n; ++j) to.push_back(first + static_cast<std::uint32_t>(j));
        i += n;
    }
    free_resident_.swap(kept);
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
void Slab<kUnitBytes, kSpanUnits>::clear() {
    for (const Segment& segment : segments_) {
        if (segment.mapped)
            munmap(segment.data, segment.bytes);
        else
            std::free(segment.data);
    }
    std::vector<Segment>().swap(segments_);
    room_ = 0;
    std::vector<Span>().swap(spans_);
    std::vector<std::uint32_t>().swap(free_resident_);
    std::vector<std::uint32_t>().swap(free_returned_);
    std::fill(partial_.begin(), partial_.end(), kNone);
}

template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
std::size_t Slab<kUnitBytes, kSpanUnits>::bytes() const {
    return (spans_.size() - free_returned_.size()) * kSpanBytes + spans_.capacity() * sizeof(Span) +
           (free_resident_.capacity() + free_returned_.capacity() + partial_.capacity()) *
               sizeof(std::uint32_t);
}

template class Slab<20, 1024>;  // nodes (index.h)
template class Slab<8, 512>;    // blocks (edges.h)

}  // namespace suffixsvc
