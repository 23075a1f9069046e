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
    std::size_t bytes = room_of(size_class) * sizeof(Edge);
    if (size_class >= kHashedClass) bytes += std::size_t{slot_bytes(size_class)} << slot_bits(size_class);
    return bytes;
}

static_assert(room_of(1) == 2 && room_of(2) == 3 && room_of(7) == 16 && room_of(8) == 24);
static_assert((1u << slot_bits(8)) == 64 && (1u << slot_bits(9)) == 64 && (1u << slot_bits(10)) == 128);

// The hash index behind the edges of a block; Slot is its integer type, all ones means empty.
template <typename Slot>
struct Slots {
    Edge* edges;
    Slot* table;
    std::uint32_t mask;
    std::uint32_t shift;
    static constexpr Slot kEmpty = static_cast<Slot>(~Slot{0});

    Slots(Edge* block, std::uint32_t size_class)
        : edges(block),
          table(reinterpret_cast<Slot*>(block + room_of(size_class))),
          mask((1u << slot_bits(size_class)) - 1),
          shift(32 - slot_bits(size_class)) {}

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

// Calls f with a block's hash index.
template <typename F>
auto with_slots(Edge* block, std::uint32_t size_class, F&& f) {
    switch (slot_bytes(size_class)) {
        case 1:
            return f(Slots<std::uint8_t>(block, size_class));
        case 2:
            return f(Slots<std::uint16_t>(block, size_class));
        default:
            return f(Slots<std::uint32_t>(block, size_class));
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

EdgePool::BlockRef EdgePool::allocate(std::uint32_t size_class) {
    const std::size_t bytes = bytes_of(size_class);
    const bool wide = bytes > kSlabBytes;
    const std::uint32_t unit = slab_.allocate(wide ? kCellUnits : static_cast<std::uint32_t>(bytes / 8),
                                              wide ? kClasses : size_class);
    if (unit & kWide) throw std::bad_alloc();
    if (!wide) return unit;
    *reinterpret_cast<Cell*>(slab_.at(unit)) = Cell{size_class, 0, static_cast<Edge*>(take(bytes))};
    wide_bytes_ += bytes;
    return unit | kWide;
}

void EdgePool::release(BlockRef ref, std::uint32_t size_class) {
    if (ref & kWide) {
        const std::size_t bytes = bytes_of(size_class);
        wide_bytes_ -= bytes;
        drop(block(ref), bytes);
        ref &= ~kWide;
        reinterpret_cast<Cell*>(slab_.at(ref))->size_class = 0;
    }
    slab_.free(ref);
}

void EdgePool::clear() {
    slab_.for_each_page([this](std::uint32_t first, std::uint32_t fresh, std::uint32_t size_class) {
        if (size_class != kClasses) return;
        for (std::uint32_t u = 0; u < fresh; u += kCellUnits) {
            const Cell* cell = reinterpret_cast<const Cell*>(slab_.at(first + u));
            if (cell->size_class != 0) drop(cell->block, bytes_of(cell->size_class));
        }
    });
    slab_.clear();
    wide_bytes_ = 0;
}

std::uint32_t EdgePool::position(const EdgeList& list, Token token) const {
    if (list.size_class >= kHashedClass)
        return with_slots(block(list.one.to), list.size_class, [&](auto slots) {
            const auto e = slots.table[slots.find(token)];
            return e == slots.kEmpty ? kAbsent : std::uint32_t{e};
        });
    const Edge* e = edges(list);
    for (std::uint32_t i = 0; i < list.size; ++i)
        if (e[i].token == token) return i;
    return kAbsent;
}

NodeId EdgePool::find(const EdgeList& list, Token token) const {
    const std::uint32_t i = position(list, token);
    return i == kAbsent ? kNoNode : edges(list)[i].to;
}

void EdgePool::move_to(EdgeList& list, std::uint32_t size_class) {
    if (size_class == 0) {
        const BlockRef old = list.one.to;
        list.one = block(old)[0];
        release(old, list.size_class);
    } else {
        const BlockRef fresh = allocate(size_class);
        std::memcpy(block(fresh), edges(list), list.size * sizeof(Edge));
        if (size_class >= kHashedClass)
            with_slots(block(fresh), size_class, [&](auto slots) { slots.build(list.size); });
        if (list.size_class > 0) release(list.one.to, list.size_class);
        list.one = Edge{-1, fresh};
    }
    list.size_class = size_class & 63u;
}

NodeId EdgePool::find_or_add(EdgeList& list, Token token, NodeId to) {
    if (list.size == 0 && list.size_class == 0) {
        list.one = Edge{token, to};
        list.size = 1;
        return kNoNode;
    }
    const bool full = list.size == room_of(list.size_class);
    if (list.size_class >= kHashedClass) {
        const NodeId found = with_slots(block(list.one.to), list.size_class, [&](auto slots) {
            auto& e = slots.table[slots.find(token)];
            if (e != slots.kEmpty) return slots.edges[e].to;
            if (!full) e = static_cast<std::remove_reference_t<decltype(e)>>(list.size);
            return kNoNode;
        });
        if (found != kNoNode) return found;
    } else {
        const Edge* e = edges(list);
        for (std::uint32_t i = 0; i < list.size; ++i)
            if (e[i].token == token) return e[i].to;
    }
    if (full) {
        if (list.size == kMostEdges) throw std::length_error("a context has too many different next tokens");
        move_to(list, list.size_class + 1);
        if (list.size_class >= kHashedClass)
            with_slots(block(list.one.to), list.size_class, [&](auto slots) {
                auto& e = slots.table[slots.find(token)];
                e = static_cast<std::remove_reference_t<decltype(e)>>(list.size);
            });
    }
    block(list.one.to)[list.size] = Edge{token, to};
    list.size = (list.size + 1) & kMostEdges;
    return kNoNode;
}

bool EdgePool::replace(EdgeList& list, Token token, NodeId from, NodeId to) {
    const std::uint32_t i = position(list, token);
    if (i == kAbsent) return false;
    Edge& e = list.size_class == 0 ? list.one : block(list.one.to)[i];
    if (e.to != from) return false;
    e.to = to;
    return true;
}

bool EdgePool::erase(EdgeList& list, Token token, NodeId to) {
    const std::uint32_t i = position(list, token);
    if (i == kAbsent || edges(list)[i].to != to) return false;
    const std::uint32_t last = list.size - 1;
    list.size = last & kMostEdges;
    if (list.size_class == 0) {
        list.one = Edge{-1, kNoNode};
        return true;
    }
    Edge* b = block(list.one.to);
    if (list.size_class >= kHashedClass)
        with_slots(b, list.size_class, [&](auto slots) {
            slots.erase(slots.find(token));
            if (i != last) {
                auto& e = slots.table[slots.find(b[last].token)];
                e = static_cast<std::remove_reference_t<decltype(e)>>(i);
            }
        });
    b[i] = b[last];
    // Shrinks below the next smaller room, so that a block at a boundary does not move to and fro.
    std::uint32_t room = list.size_class;
    while (room > 0 && last <= std::max(1u, room_of(room - 1) * 2 / 3)) --room;
    if (room != list.size_class) move_to(list, room);
    if (last == 0) list.one = Edge{-1, kNoNode};
    return true;
}

void EdgePool::copy(const EdgeList& from, EdgeList& to) {
    to = from;
    if (from.size_class == 0) return;
    to.one.to = allocate(from.size_class);
    std::memcpy(block(to.one.to), block(from.one.to),
                from.size_class >= kHashedClass ? bytes_of(from.size_class) : from.size * sizeof(Edge));
}

void EdgePool::free(EdgeList& list) {
    if (list.size_class > 0) release(list.one.to, list.size_class);
    list = EdgeList{};
}

void EdgePool::prefetch_slot(const EdgeList& list, Token token) const {
    if (list.size_class >= kHashedClass)
        with_slots(block(list.one.to), list.size_class,
                   [&](auto slots) { __builtin_prefetch(&slots.table[slots.home(token)]); });
    else if (list.size_class > 0)
        __builtin_prefetch(block(list.one.to));
}

void EdgePool::prefetch_edge(const EdgeList& list, Token token) const {
    if (list.size_class >= kHashedClass)
        with_slots(block(list.one.to), list.size_class, [&](auto slots) {
            const auto e = slots.table[slots.home(token)];
            if (e != slots.kEmpty) __builtin_prefetch(&slots.edges[e]);
            __builtin_prefetch(&slots.edges[list.size - 1]);  // erasing moves it
        });
}

const char* EdgePool::broken(const EdgeList& list) const {
    if (list.size > room_of(list.size_class)) return "an edge list holds more than its room";
    if (list.size_class > 0 && list.size == 0) return "an empty edge list holds a block";
    const Edge* e = edges(list);
    for (std::uint32_t i = 0; i < list.size; ++i)
        if (position(list, e[i].token) != i) return "an edge is not found where it stands";
    return nullptr;
}

}  // namespace suffixsvc
