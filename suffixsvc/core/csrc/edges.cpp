#include "edges.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace suffixsvc {

namespace {

constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;
constexpr std::uint32_t kHashedClass = 8;       // room for 24 and more
constexpr std::uint32_t kClasses = 51;          // room for 2^26 - 1 and less
constexpr std::uint32_t kSlabBytes = 1024;      // wider blocks have memory of their own,
constexpr std::size_t kMappedBytes = 64 << 10;  // from here on straight from the system
constexpr std::uint32_t kMostEdges = (1u << 26) - 1;

// Rooms 1 2 3 4 6 8 12 16 24 32 48 ...
constexpr std::uint32_t room_of(std::uint32_t size_class) {
    if (size_class == 0) return 1;
    return (size_class & 1 ? 2u : 3u) << ((size_class - 1) / 2);
}

// Slots are a power of two, at least two an edge.
constexpr std::uint32_t slot_bits(std::uint32_t size_class) { return size_class / 2 + 2; }

constexpr std::uint32_t slot_bytes(std::uint32_t size_class) {
    const std::uint32_t room = room_of(size_class);
    return room < 0xFF ? 1 : room < 0xFFFF ? 2 : 4;
}

constexpr std::size_t bytes_of(std::uint32_t size_class) {
    std::size_t bytes = sizeof(Block) + room_of(size_class) * sizeof(Edge);
    if (size_class >= kHashedClass) bytes += std::size_t{slot_bytes(size_class)} << slot_bits(size_class);
    return bytes;
}

static_assert(room_of(1) == 2 && room_of(2) == 3 && room_of(7) == 16 && room_of(8) == 24);
static_assert((1u << slot_bits(8)) == 64 && (1u << slot_bits(9)) == 64 && (1u << slot_bits(10)) == 128);

// The hash index behind the edges of a block; Slot is its integer type, all ones means empty.
template <typename Slot>
struct Slots {
    const Edge* edges;
    Slot* table;
    std::uint32_t mask;
    std::uint32_t shift;
    static constexpr Slot kEmpty = static_cast<Slot>(~Slot{0});

    explicit Slots(const Block* b)
        : edges(b->edges()),
          table(reinterpret_cast<Slot*>(const_cast<Edge*>(b->edges() + room_of(b->size_class)))),
          mask((1u << slot_bits(b->size_class)) - 1),
          shift(32 - slot_bits(b->size_class)) {}

    std::uint32_t home(Token token) const {
        return (static_cast<std::uint32_t>(token) * 0x9E3779B1u) >> shift;
    }
    // The token's slot, or the empty one where it would go.
    std::uint32_t find(Token token) const {
        std::uint32_t i = home(token);
        while (table[i] != kEmpty && edges[table[i]].token != token) i = (i + 1) & mask;
        return i;
    }
    void build(std::uint32_t size) {
        std::memset(table, 0xFF, (std::size_t{mask} + 1) * sizeof(Slot));
        for (std::uint32_t e = 0; e < size; ++e) {
            std::uint32_t i = home(edges[e].token);
            while (table[i] != kEmpty) i = (i + 1) & mask;
            table[i] = static_cast<Slot>(e);
        }
    }
    void erase(std::uint32_t hole) {
        // Linear probing without tombstones: slots behind the hole move up where their home allows it.
        for (std::uint32_t i = (hole + 1) & mask; table[i] != kEmpty; i = (i + 1) & mask)
            if (((i - home(edges[table[i]].token)) & mask) >= ((i - hole) & mask)) {
                table[hole] = table[i];
                hole = i;
            }
        table[hole] = kEmpty;
    }
};

// Calls f with the block's hash index.
template <typename F>
auto with_slots(const Block* b, F&& f) {
    switch (slot_bytes(b->size_class)) {
        case 1:
            return f(Slots<std::uint8_t>(b));
        case 2:
            return f(Slots<std::uint16_t>(b));
        default:
            return f(Slots<std::uint32_t>(b));
    }
}

void* take(std::size_t bytes) {
    if (bytes >= kMappedBytes) {
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        return p;
    }
    void* p = std::malloc(bytes);
    if (p == nullptr) throw std::bad_alloc();
    return p;
}

void drop(void* p, std::size_t bytes) {
    if (bytes >= kMappedBytes)
        munmap(p, bytes);
    else
        std::free(p);
}

constexpr std::uint32_t kCellUnits = 2;

}  // namespace

EdgePool::EdgePool() : slab_(kClasses + 1) {}

BlockRef EdgePool::allocate(std::uint32_t size_class) {
    const std::size_t bytes = bytes_of(size_class);
    BlockRef ref;
    if (bytes <= kSlabBytes) {
        ref = slab_.allocate(static_cast<std::uint32_t>(bytes / 8), size_class);
        if (ref & kWide) throw std::bad_alloc();
    } else {
        void* p = take(bytes);
        const std::uint32_t unit = slab_.allocate(kCellUnits, kClasses);
        if (unit & kWide) throw std::bad_alloc();
        *reinterpret_cast<Cell*>(slab_.at(unit)) = Cell{1, 0, static_cast<Block*>(p)};
        ref = unit | kWide;
        wide_bytes_ += bytes;
    }
    block(ref)->size_class = size_class & 63u;
    return ref;
}

BlockRef EdgePool::make() {
    const BlockRef ref = allocate(0);
    Block* b = block(ref);
    b->unsent = 0;
    b->kids = b->kids_xor = b->ends = 0;
    b->recent = -1;
    b->size = 0;
    return ref;
}

void EdgePool::free(BlockRef ref) {
    if (!(ref & kWide)) {
        slab_.free(ref);
        return;
    }
    Block* b = block(ref);
    const std::size_t bytes = bytes_of(b->size_class);
    wide_bytes_ -= bytes;
    drop(b, bytes);
    reinterpret_cast<Cell*>(slab_.at(ref & ~kWide))->live = 0;
    slab_.free(ref & ~kWide);
}

void EdgePool::clear() {
    slab_.for_each_span([this](std::uint32_t first, std::uint32_t fresh, std::uint32_t size_class) {
        if (size_class != kClasses) return;
        for (std::uint32_t u = 0; u < fresh; u += kCellUnits) {
            const Cell* cell = reinterpret_cast<const Cell*>(slab_.at(first + u));
            if (cell->live) drop(cell->block, bytes_of(cell->block->size_class));
        }
    });
    slab_.clear();
    wide_bytes_ = 0;
}

std::uint32_t EdgePool::position(const Block* b, Token token) const {
    if (b->size_class >= kHashedClass)
        return with_slots(b, [&](auto slots) {
            const auto e = slots.table[slots.find(token)];
            return e == slots.kEmpty ? kAbsent : std::uint32_t{e};
        });
    const Edge* e = b->edges();
    for (std::uint32_t i = 0; i < b->size; ++i)
        if (e[i].token == token) return i;
    return kAbsent;
}

NodeId EdgePool::find(const Block* b, Token token) const {
    const std::uint32_t i = position(b, token);
    return i == kAbsent ? kNoNode : b->edges()[i].to;
}

void EdgePool::move_to(BlockRef& ref, std::uint32_t size_class) {
    const BlockRef fresh = allocate(size_class);
    const Block* from = block(ref);
    Block* to = block(fresh);
    std::memcpy(to, from, sizeof(Block) + from->size * sizeof(Edge));
    to->size_class = size_class & 63u;
    if (size_class >= kHashedClass) with_slots(to, [&](auto slots) { slots.build(to->size); });
    free(ref);
    ref = fresh;
}

BlockRef EdgePool::copy(BlockRef ref) {
    const std::uint32_t size_class = block(ref)->size_class;
    const BlockRef fresh = allocate(size_class);
    const Block* from = block(ref);
    std::memcpy(
        block(fresh), from,
        size_class >= kHashedClass ? bytes_of(size_class) : sizeof(Block) + from->size * sizeof(Edge));
    return fresh;
}

NodeId EdgePool::find_or_add(BlockRef& ref, Token token, NodeId to) {
    Block* b = block(ref);
    const bool full = b->size == room_of(b->size_class);
    if (b->size_class >= kHashedClass) {
        const NodeId found = with_slots(b, [&](auto slots) {
            auto& e = slots.table[slots.find(token)];
            if (e != slots.kEmpty) return slots.edges[e].to;
            if (!full) e = static_cast<std::remove_reference_t<decltype(e)>>(b->size);
            return kNoNode;
        });
        if (found != kNoNode) return found;
    } else {
        const Edge* e = b->edges();
        for (std::uint32_t i = 0; i < b->size; ++i)
            if (e[i].token == token) return e[i].to;
    }
    if (full) {
        if (b->size == kMostEdges) throw std::length_error("a context has too many different next tokens");
        move_to(ref, b->size_class + 1);
        b = block(ref);
        if (b->size_class >= kHashedClass)
            with_slots(b, [&](auto slots) {
                auto& e = slots.table[slots.find(token)];
                e = static_cast<std::remove_reference_t<decltype(e)>>(b->size);
            });
    }
    b->edges()[b->size] = Edge{token, to};
    b->size = (b->size + 1) & kMostEdges;
    return kNoNode;
}

bool EdgePool::replace(BlockRef ref, Token token, NodeId from, NodeId to) {
    Block* b = block(ref);
    const std::uint32_t i = position(b, token);
    if (i == kAbsent || b->edges()[i].to != from) return false;
    b->edges()[i].to = to;
    return true;
}

bool EdgePool::erase(BlockRef& ref, Token token, NodeId to) {
    Block* b = block(ref);
    const std::uint32_t i = position(b, token);
    Edge* edges = b->edges();
    if (i == kAbsent || edges[i].to != to) return false;
    const std::uint32_t last = b->size - 1;
    if (b->size_class >= kHashedClass)
        with_slots(b, [&](auto slots) {
            slots.erase(slots.find(token));
            if (i != last) {
                auto& e = slots.table[slots.find(edges[last].token)];
                e = static_cast<std::remove_reference_t<decltype(e)>>(i);
            }
        });
    edges[i] = edges[last];
    b->size = last & kMostEdges;
    // Shrinks at half the next smaller room, so that a block at a boundary does not move to and fro.
    if (b->size_class > 0 && last <= std::max(1u, room_of(b->size_class - 1) * 2 / 3))
        move_to(ref, b->size_class - 1);
    return true;
}

void EdgePool::prefetch_slot(const Block* b, Token token) const {
    if (b->size_class >= kHashedClass)
        with_slots(b, [&](auto slots) { __builtin_prefetch(&slots.table[slots.home(token)]); });
}

const char* EdgePool::broken(const Block* b) const {
    if (b->size > room_of(b->size_class)) return "an edge block holds more than its room";
    for (std::uint32_t i = 0; i < b->size; ++i)
        if (position(b, b->edges()[i].token) != i) return "an edge is not found where it stands";
    return nullptr;
}

}  // namespace suffixsvc
