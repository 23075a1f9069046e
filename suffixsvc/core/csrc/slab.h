// Memory for many small records that never move while they live, and goes back to the system.
//
//   segments   [span][span span][span span span span] ...    each twice as large as the one before
//   a span     [record record record free record | not used yet]      records of one size
//
// A record is named by its first unit: unit u of the whole slab lies at a fixed distance from the start
// of its segment, so an address is one bit scan and one addition away. A span that holds no record is
// free for records of any size; when enough spans are free their pages are given back to the system and
// only the addresses are kept.
//
// Threads: one writer; at() may be called by readers that were handed the unit by that writer.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace suffixsvc {

// Records are whole numbers of units, at least 8 bytes; kUnitBytes * kSpanUnits is a multiple of a page.
template <std::uint32_t kUnitBytes, std::uint32_t kSpanUnits>
class Slab {
  public:
    // Sizes are told apart by a class, 0 .. classes - 1.
    explicit Slab(std::uint32_t classes) : partial_(classes, kNone) {}
    Slab(const Slab&) = delete;
    Slab& operator=(const Slab&) = delete;
    ~Slab() { clear(); }

    char* at(std::uint32_t unit) const {
        const std::uint32_t shifted = unit + kSpanUnits;  // segment k begins at kSpanUnits << k
        return reinterpret_cast<char*>(bases_[std::bit_width(shifted)] + std::uintptr_t{unit} * kUnitBytes);
    }
    // Not initialised. Throws std::bad_alloc.
    std::uint32_t allocate(std::uint32_t units, std::uint32_t size_class);
    // Bytes 4 and 5 of the record are overwritten, the others are left as they are for now.
    void free(std::uint32_t unit);
    // Gives everything back; no record may be used any more.
    void clear();

    // What is held: spans in use, free ones that were not given back, and the books.
    std::size_t bytes() const;
    // Calls f(first unit, units used so far, size class) for every span that holds a record. Freed records
    // lie among the others: the owner must be able to tell.
    template <typename F>
    void for_each_span(F&& f) const {
        for (std::uint32_t s = 0; s < spans_.size(); ++s)
            if (spans_[s].live > 0) f(s * kSpanUnits, std::uint32_t{spans_[s].fresh}, spans_[s].size_class);
    }
    // One past the largest unit that was ever handed out.
    std::uint32_t end() const { return static_cast<std::uint32_t>(spans_.size()) * kSpanUnits; }

  private:
    static_assert((kUnitBytes * kSpanUnits) % 4096 == 0 && kSpanUnits < 0xFFFF);
    static constexpr std::size_t kSpanBytes = std::size_t{kUnitBytes} * kSpanUnits;
    static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
    static constexpr std::uint16_t kNil = 0xFFFFu;

    struct Span {
        std::uint16_t live = 0;     // records
        std::uint16_t fresh = 0;    // units from here on were not used yet
        std::uint16_t free = kNil;  // first unit of a freed record; its bytes 4 and 5 name the next one
        std::uint16_t units = 0;    // of a record
        std::uint32_t size_class = 0;
        std::uint32_t before = kNone, after = kNone;  // spans of this class with room
        bool full() const { return free == kNil && fresh + units > kSpanUnits; }
    };
    struct Segment {
        char* data;
        std::size_t bytes;
        bool mapped;
    };

    std::uint32_t take_span();
    void grow();
    void link(std::uint32_t s);
    void unlink(std::uint32_t s);
    void give_back_spans();

    // By the bit width of unit + kSpanUnits; each is the segment's address less its first unit's offset.
    std::array<std::uintptr_t, 33> bases_{};
    std::vector<Segment> segments_;
    std::size_t room_ = 0;  // spans in all segments
    std::vector<Span> spans_;
    std::vector<std::uint32_t> partial_;        // by class: a span with room
    std::vector<std::uint32_t> free_resident_;  // spans that hold memory but no record
    std::vector<std::uint32_t> free_returned_;  // spans whose pages the system has
};

}  // namespace suffixsvc
