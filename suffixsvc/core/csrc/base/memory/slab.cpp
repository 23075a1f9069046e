#include "base/memory/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace suffixsvc {

namespace {
constexpr std::size_t kMappedBytes = 4 << 20;  // segments of this size and more are mapped directly
// and of this size and more with large pages, where the system has them
constexpr std::size_t kHugePageBytes = 8 << 20;
constexpr std::size_t kFewPages = 64;  // fewer free pages than this are not worth a system call
constexpr std::size_t kLargePage = 2 << 20;
constexpr std::size_t kAheadPages = 128;  // a large page is requested when so many pages are left before it
}  // namespace

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::grow() {
    const std::size_t k = segments_.size();
    const std::size_t first = ((std::size_t{1} << k) - 1) * kGroupUnits;  // unit
    if (first + (std::size_t{kGroupUnits} << k) + kGroupUnits > std::size_t{kNone}) throw std::bad_alloc();
    segments_.reserve(k + 1);  // no exception after the memory was allocated
    Segment segment{nullptr, kGroupPages * kPageBytes << k, false};
    segment.mapped = segment.bytes >= kMappedBytes;
    if (segment.mapped) {
        void* p = mmap(nullptr, segment.bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        if (segment.bytes >= kHugePageBytes) madvise(p, segment.bytes, MADV_HUGEPAGE);
        segment.data = static_cast<char*>(p);
    } else {
        segment.data = static_cast<char*>(std::aligned_alloc(kPageBytes, segment.bytes));
        if (segment.data == nullptr) throw std::bad_alloc();
    }
    segments_.push_back(segment);
    capacity_ += kGroupPages << k;
    bases_[static_cast<std::size_t>(std::bit_width(kGroupUnits)) + k] =
        reinterpret_cast<std::uintptr_t>(segment.data) - first * kUnitBytes;
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
std::uint32_t Slab<kUnitBytes, kGroupUnits>::take_page() {
    for (auto* spare : {&free_resident_, &free_returned_})
        if (!spare->empty()) {
            const std::uint32_t p = spare->back();
            spare->pop_back();
            return p;
        }
    if (pages_.size() == capacity_) grow();
    pages_.emplace_back();
    schedule_populate();
    return static_cast<std::uint32_t>(pages_.size() - 1);
}

// Called after a page was used for the first time: schedules a large page that begins kAheadPages further on.
template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::schedule_populate() {
    const std::size_t at = pages_.size() - 1 + kAheadPages;
    if (at >= capacity_) {
        // The next segment is reserved early, so that its beginning can be populated.
        if (at == capacity_ && segments_.back().bytes * 2 >= kHugePageBytes) {
            try {
                grow();
            } catch (const std::bad_alloc&) {  // take_page() tries again when the present segment is full
            }
        }
        if (at >= capacity_) return;
    }
    const auto k = static_cast<std::size_t>(std::bit_width(at / kGroupPages + 1) - 1);
    const Segment& segment = segments_[k];
    if (segment.bytes < kHugePageBytes) return;
    const std::size_t first = ((std::size_t{1} << k) - 1) * kGroupPages;
    const auto address = reinterpret_cast<std::uintptr_t>(segment.data) + (at - first) * kPageBytes;
    if (at == first || address % kLargePage == 0) populate_at_.store(address, std::memory_order_relaxed);
}

// The address may have been unmapped or reused by now: it is populated without being written to.
template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::populate_scheduled() {
    const std::uintptr_t address = populate_at_.exchange(0, std::memory_order_relaxed);
#ifdef MADV_POPULATE_WRITE
    if (address == 0) return;
    const std::size_t bytes = kLargePage - address % kLargePage;
    (void)madvise(reinterpret_cast<void*>(address), bytes, MADV_POPULATE_WRITE);
#else
    (void)address;
#endif
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::link(std::uint32_t p) {
    Page& page = pages_[p];
    std::uint32_t& head = partial_[page.size_class];
    page.prev = kNone;
    page.next = head;
    if (head != kNone) pages_[head].prev = p;
    head = p;
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::unlink(std::uint32_t p) {
    const Page& page = pages_[p];
    (page.prev == kNone ? partial_[page.size_class] : pages_[page.prev].next) = page.next;
    if (page.next != kNone) pages_[page.next].prev = page.prev;
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
std::uint32_t Slab<kUnitBytes, kGroupUnits>::allocate(std::uint32_t units, std::uint32_t size_class) {
    std::uint32_t p = partial_[size_class];
    if (p == kNone) {
        p = take_page();
        pages_[p] = Page{};
        pages_[p].units = static_cast<std::uint8_t>(units);
        pages_[p].size_class = static_cast<std::uint8_t>(size_class);
        link(p);
    }
    Page& page = pages_[p];
    std::uint32_t unit = first_unit(p);
    if (page.free != kNil) {
        unit += page.free;
        std::memcpy(&page.free, at(unit) + 4, sizeof page.free);
    } else {
        unit += page.fresh;
        page.fresh = static_cast<std::uint16_t>(page.fresh + units);
    }
    ++page.live;
    used_ += std::size_t{units} * kUnitBytes;
    if (full(p)) unlink(p);
    return unit;
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::free(std::uint32_t unit) {
    const std::uint32_t p = page_of(unit);
    Page& page = pages_[p];
    const bool was_full = full(p);
    used_ -= std::size_t{page.units} * kUnitBytes;
    if (--page.live == 0) {
        if (!was_full) unlink(p);
        free_resident_.push_back(p);
        if (free_resident_.size() > std::max(kFewPages, pages_.size() / 32)) return_pages(kFewPages);
        return;
    }
    std::memcpy(at(unit) + 4, &page.free, sizeof page.free);
    page.free = static_cast<std::uint16_t>(unit - first_unit(p));
    if (was_full) link(p);
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::return_pages(std::size_t limit) {
    // The last ones: a text that is removed frees its pages one after the other.
    limit = std::min(limit, free_resident_.size());
    const std::vector<std::uint32_t> pages = [&] {
        const auto from = free_resident_.end() - static_cast<std::ptrdiff_t>(limit);
        std::vector<std::uint32_t> last(from, free_resident_.end());
        free_resident_.erase(from, free_resident_.end());
        std::sort(last.begin(), last.end());
        return last;
    }();
    for (std::size_t i = 0; i < pages.size();) {
        const std::size_t first = pages[i];
        const auto k = static_cast<std::size_t>(std::bit_width(first / kGroupPages + 1) - 1);
        const std::size_t begin = ((std::size_t{1} << k) - 1) * kGroupPages;  // of the segment, in pages
        const std::size_t end = begin + (kGroupPages << k);
        std::size_t n = 1;
        while (i + n < pages.size() && pages[i + n] == first + n && first + n < end) ++n;
        // Pages that malloc gave are given back in the same way; it gets the addresses again in the end.
        const bool returned =
            madvise(segments_[k].data + (first - begin) * kPageBytes, n * kPageBytes, MADV_DONTNEED) == 0;
        auto& to = returned ? free_returned_ : free_resident_;
        for (std::size_t j = 0; j < n; ++j) to.push_back(static_cast<std::uint32_t>(first + j));
        i += n;
    }
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::release_segment(const Segment& segment) {
    if (segment.mapped)
        munmap(segment.data, segment.bytes);
    else
        std::free(segment.data);
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
void Slab<kUnitBytes, kGroupUnits>::trim() {
    std::size_t retained = pages_.size();
    while (retained > 0 && pages_[retained - 1].live == 0) --retained;
    while (!segments_.empty()) {
        const std::size_t pages = segments_.back().bytes / kPageBytes;
        if (capacity_ - pages < retained) break;
        release_segment(segments_.back());
        segments_.pop_back();
        capacity_ -= pages;
    }
    if (!segments_.empty()) {
        const Segment& segment = segments_.back();
        const std::size_t used = retained - (capacity_ - segment.bytes / kPageBytes);
        (void)madvise(segment.data + used * kPageBytes, segment.bytes - used * kPageBytes, MADV_DONTNEED);
    }
    pages_.resize(retained);
    pages_.shrink_to_fit();
    for (auto* spare : {&free_resident_, &free_returned_}) {
        std::erase_if(*spare, [this](std::uint32_t p) { return p >= pages_.size(); });
        spare->shrink_to_fit();
    }
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
Slab<kUnitBytes, kGroupUnits>::~Slab() {
    for (const Segment& segment : segments_) release_segment(segment);
}

template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
std::size_t Slab<kUnitBytes, kGroupUnits>::bytes() const {
    return (pages_.size() - free_returned_.size()) * kPageBytes + pages_.capacity() * sizeof(Page) +
           (free_resident_.capacity() + free_returned_.capacity() + partial_.capacity()) *
               sizeof(std::uint32_t);
}

template class Slab<20, 1024>;  // plain nodes (index/nodes.h)
template class Slab<48, 256>;   // full nodes (index/nodes.h)
template class Slab<8, 512>;    // edges (index/edges.h)

}  // namespace suffixsvc
