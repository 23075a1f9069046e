// Slab allocator: memory for many small records that never move while they live, returned to the system
// when free.
//
//   segments   [page ..][page page ..][page page page page ..] ...    each twice as large as the one before
//   a page     [record record record free record | not used yet]      records of one size
//
// A record is identified by its first unit: unit u of the slab lies at a fixed distance from the start of its
// segment, so computing an address takes one bit scan and one addition. Records do not cross pages; units
// that do are skipped. A page that holds no record is free for records of any size; when enough pages are
// free, their memory is returned to the system and only their addresses are retained.
//
// The system allocates memory when it is first touched. For a large page this takes milliseconds, and the
// writer holds a lock: so populate() requests the next large page ahead of time, outside of that lock.
//
// Threads: one writer, and any number of callers of populate(); at() may be called by readers that received
// the unit from that writer. A record that they may still read must not be freed (base/memory/epoch_guard.h).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace suffixsvc {

// Records are whole numbers of units, at least 8 bytes; kUnitBytes * kGroupUnits is a multiple of a page.
template <std::uint32_t kUnitBytes, std::uint32_t kGroupUnits>
class Slab {
  public:
    // Sizes are distinguished by a size class, 0 .. classes - 1.
    explicit Slab(std::uint32_t classes) : partial_(classes, kNone) {}
    Slab(const Slab&) = delete;
    Slab& operator=(const Slab&) = delete;
    ~Slab();

    char* at(std::uint32_t unit) const {
        const std::uint32_t shifted = unit + kGroupUnits;  // segment k begins at kGroupUnits << k
        return reinterpret_cast<char*>(bases_[std::bit_width(shifted)] + std::uintptr_t{unit} * kUnitBytes);
    }
    // Not initialised. Throws std::bad_alloc.
    std::uint32_t allocate(std::uint32_t units, std::uint32_t size_class);
    // Bytes 4 and 5 of the record are overwritten, the others are left as they are for now.
    void free(std::uint32_t unit);
    // Touches the memory that will be needed next, if it is due, which it seldom is.
    void populate() {
        if (populate_at_.load(std::memory_order_relaxed) != 0) populate_scheduled();
    }
    // Returns the memory after the last record to the system, metadata included.
    void trim();

    // Memory held: pages in use, free pages that were not returned, and metadata.
    std::size_t bytes() const;
    // The part of bytes() that live records take.
    std::size_t used_bytes() const { return used_; }
    // Calls f(first unit, units used so far, size class) for page `number` of pages(), if it holds a record.
    // Freed records lie among the live ones: the owner must be able to distinguish them.
    template <typename F>
    void for_page(std::uint32_t number, F&& f) const {
        const Page& page = pages_[number];
        if (page.live > 0) f(first_unit(number), std::uint32_t{page.fresh}, page.size_class);
    }
    std::uint32_t pages() const { return static_cast<std::uint32_t>(pages_.size()); }
    // Larger than any unit that was ever handed out.
    std::uint32_t end() const { return first_unit(static_cast<std::uint32_t>(pages_.size())); }

  private:
    static constexpr std::size_t kPageBytes = 4096;
    static constexpr std::size_t kGroupPages = std::size_t{kUnitBytes} * kGroupUnits / kPageBytes;
    static_assert(std::size_t{kUnitBytes} * kGroupUnits % kPageBytes == 0);
    static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
    static constexpr std::uint16_t kNil = 0xFFFFu;

    struct Page {
        std::uint16_t live = 0;     // records
        std::uint16_t fresh = 0;    // units from here on were never used
        std::uint16_t free = kNil;  // first unit of a freed record; its bytes 4 and 5 hold the next one
        std::uint8_t units = 0;     // of a record
        std::uint8_t size_class = 0;
        std::uint32_t prev = kNone, next = kNone;  // list of the pages of this class with free space
    };
    struct Segment {
        char* data;
        std::size_t bytes;
        bool mapped;
    };

    static std::uint32_t first_unit(std::uint32_t page) {
        return static_cast<std::uint32_t>((std::uint64_t{page} * kPageBytes + kUnitBytes - 1) / kUnitBytes);
    }
    static std::uint32_t page_of(std::uint32_t unit) {
        return static_cast<std::uint32_t>(std::uint64_t{unit} * kUnitBytes / kPageBytes);
    }
    static std::uint32_t page_capacity(std::uint32_t page) {
        const std::uint64_t end = (std::uint64_t{page} + 1) * kPageBytes / kUnitBytes;
        return static_cast<std::uint32_t>(end) - first_unit(page);
    }
    bool full(std::uint32_t p) const {
        return pages_[p].free == kNil && pages_[p].fresh + pages_[p].units > page_capacity(p);
    }
    std::uint32_t take_page();
    void grow();  // throws std::bad_alloc without having changed anything
    void schedule_populate();
    void populate_scheduled();
    void link(std::uint32_t p);
    void unlink(std::uint32_t p);
    void return_pages(std::size_t limit);
    static void release_segment(const Segment& segment);

    // Indexed by the bit width of unit + kGroupUnits: the segment's address less the offset of its
    // first unit.
    std::array<std::uintptr_t, 33> bases_{};
    std::vector<Segment> segments_;
    std::size_t capacity_ = 0;  // pages in all segments
    std::size_t used_ = 0;      // bytes of live records
    std::vector<Page> pages_;
    std::vector<std::uint32_t> partial_;        // by class: head of the list of pages with free space
    std::vector<std::uint32_t> free_resident_;  // pages that hold memory but no record
    std::vector<std::uint32_t> free_returned_;  // pages whose memory was returned to the system
    // Address of the large page to be populated next; 0: none.
    std::atomic<std::uintptr_t> populate_at_{0};
};

}  // namespace suffixsvc
