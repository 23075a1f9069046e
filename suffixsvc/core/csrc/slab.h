// Memory for many small records that never move while they live, and goes back to the system.
//
//   segments   [page ..][page page ..][page page page page ..] ...    each twice as large as the one before
//   a page     [record record record free record | not used yet]      records of one size
//
// A record is named by its first unit: unit u of the whole slab lies at a fixed distance from the start
// of its segment, so an address is one bit scan and one addition away. Records do not cross pages; units
// that do are left out. A page that holds no record is free for records of any size; when enough are free
// they are given back to the system and only their addresses are kept.
//
// The system finds memory when it is first touched. For a large page that takes milliseconds, and who writes
// holds a lock: so the next one is asked for ahead of time, by populate(), outside of it.
//
// Threads: one writer, and any number of callers of populate(); at() may be called by readers that were
// handed the unit by that writer. What they may still look at must not be freed (grace.h).
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
    // Sizes are told apart by a class, 0 .. classes - 1.
    explicit Slab(std::uint32_t classes) : partial_(classes, kNone) {}
    Slab(const Slab&) = delete;
    Slab& operator=(const Slab&) = delete;
    ~Slab() { clear(); }

    char* at(std::uint32_t unit) const {
        const std::uint32_t shifted = unit + kGroupUnits;  // segment k begins at kGroupUnits << k
        return reinterpret_cast<char*>(bases_[std::bit_width(shifted)] + std::uintptr_t{unit} * kUnitBytes);
    }
    // Not initialised. Throws std::bad_alloc.
    std::uint32_t allocate(std::uint32_t units, std::uint32_t size_class);
    // Bytes 4 and 5 of the record are overwritten, the others are left as they are for now.
    void free(std::uint32_t unit);
    // Gives everything back; no record may be used any more.
    void clear();
    // Has the system find the memory that will be needed next. Seldom anything.
    void populate() {
        if (ahead_.load(std::memory_order_relaxed) != 0) populate_ahead();
    }
    // Gives what lies behind the last record back, books included.
    void trim();

    // What is held: pages in use, free ones that were not given back, and the books.
    std::size_t bytes() const;
    // What the records that live take of it.
    std::size_t used_bytes() const { return used_; }
    // Calls f(first unit, units used so far, size class) for every page that holds a record. Freed records
    // lie among the others: the owner must be able to tell.
    template <typename F>
    void for_each_page(F&& f) const {
        for (std::uint32_t p = 0; p < pages_.size(); ++p)
            if (pages_[p].live > 0) f(first_unit(p), std::uint32_t{pages_[p].fresh}, pages_[p].size_class);
    }
    // The same for page `number` of pages().
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
        std::uint16_t fresh = 0;    // units from here on were not used yet
        std::uint16_t free = kNil;  // first unit of a freed record; its bytes 4 and 5 name the next one
        std::uint8_t units = 0;     // of a record
        std::uint8_t size_class = 0;
        std::uint32_t before = kNone, after = kNone;  // pages of this class with room
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
    static std::uint32_t room(std::uint32_t page) {
        const std::uint64_t end = (std::uint64_t{page} + 1) * kPageBytes / kUnitBytes;
        return static_cast<std::uint32_t>(end) - first_unit(page);
    }
    bool full(std::uint32_t p) const {
        return pages_[p].free == kNil && pages_[p].fresh + pages_[p].units > room(p);
    }
    std::uint32_t take_page();
    void grow();  // throws std::bad_alloc, and has changed nothing then
    void try_to_grow() noexcept;
    void look_ahead();
    void populate_ahead();
    void link(std::uint32_t p);
    void unlink(std::uint32_t p);
    void give_back_pages(std::size_t most);
    static void drop(const Segment& segment);

    // By the bit width of unit + kGroupUnits; each is the segment's address less its first unit's offset.
    std::array<std::uintptr_t, 33> bases_{};
    std::vector<Segment> segments_;
    std::size_t room_ = 0;  // pages in all segments
    std::size_t used_ = 0;  // bytes of live records
    std::vector<Page> pages_;
    std::vector<std::uint32_t> partial_;        // by class: a page with room
    std::vector<std::uint32_t> free_resident_;  // pages that hold memory but no record
    std::vector<std::uint32_t> free_returned_;  // pages that the system has
    // The large page to be populated; 0: none.
    std::atomic<std::uintptr_t> ahead_{0};
};

}  // namespace suffixsvc
