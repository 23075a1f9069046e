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
    EdgeWord* edges;
    Word<Slot>* table;
    std::uint32_t mask;
    std::uint32_t shift;
    static constexpr Slot kEmpty = static_cast<Slot>(~Slot{0});

    Slots(EdgeWord* block, std::uint32_t size_class)
        : edges(block),
          table(reinterpret_cast<Word<Slot>*>(block + room_of(size_class))),
          mask((1u << slot_bits(size_class)) - 1),
          shift(32 - slot_bits(size_class)) {}

    std::uint32_t home(Token token) const {
        return (static_cast<std::uint32_t>(token) * 0x9E3779B1u) >> shift;
    }
    // The token's slot, or the empty one where it would go. For the writer.
    std::uint32_t find(Token token) const {
        std::uint32_t i = home(token);
        for (Slot e; (e = table[i]) != kEmpty && unpack(edges[e]).token != token;) i = (i + 1) & mask;
        return i;
    }
    // Where the token leads, as far as can be told while the writer is at work; never more than once around.
    NodeId look_up(Token token) const {
        std::uint32_t i = home(token);
        for (std::uint32_t n = 0; n <= mask; ++n, i = (i + 1) & mask) {
            const Slot e = table[i];
            if (e == kEmpty) break;
            const Edge edge = unpack(edges[e]);
            if (edge.token == token) return edge.to;
        }
        return kNoNode;
    }
    void put(std::uint32_t i, std::uint32_t e) { table[i] = static_cast<Slot>(e); }
    void build(std::uint32_t size) {
        std::memset(static_cast<void*>(table), 0xFF, (std::size_t{mask} + 1) * sizeof(Slot));
        for (std::uint32_t e = 0; e < size; ++e) {
            std::uint32_t i = home(unpack(edges[e]).token);
            while (table[i] != kEmpty) i = (i + 1) & mask;
            put(i, e);
        }
    }
    void erase(std::uint32_t hole) {
        // Linear probing without tombstones: slots behind the hole move up where their home allows it.
        Slot e;
        for (std::uint32_t i = (hole + 1) & mask; (e = table[i]) != kEmpty; i = (i + 1) & mask)
            if (((i - home(unpack(edges[e]).token)) & mask) >= ((i - hole) & mask)) {
                table[hole] = e;
                hole = i;
            }
        table[hole] = kEmpty;
    }
};

// Calls f with a block's hash index.
template <typename F>
auto with_slots(EdgeWord* block, std::uint32_t size_class, F&& f) {
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

EdgePool::EdgePool(Limbo<Retired>& limbo, bool readers)
    : limbo_(limbo), readers_(readers), slab_(kClasses + 1) {}

// ---------------------------------------------------------------------------------------- memory

EdgePool::BlockRef EdgePool::allocate(std::uint32_t size_class) {
    const std::size_t bytes = bytes_of(size_class);
    const bool wide = bytes > kSlabBytes;
    const std::uint32_t unit = slab_.allocate(wide ? kCellUnits : static_cast<std::uint32_t>(bytes / 8),
                                              wide ? kClasses : size_class);
    if (unit & kWide) throw std::bad_alloc();
    if (!wide) return unit;
    *reinterpret_cast<Cell*>(slab_.at(unit)) = Cell{size_class, 0, static_cast<EdgeWord*>(take(bytes))};
    wide_bytes_ += bytes;
    return unit | kWide;
}

void EdgePool::release(BlockRef ref, std::uint32_t size_class) {
    if (readers_)
        limbo_.put({Retired::block, static_cast<std::uint8_t>(size_class), ref}, bytes_of(size_class));
    else
        release_now(ref, size_class);
}

void EdgePool::release_now(BlockRef ref, std::uint32_t size_class) {
    if (ref & kWide) {
        const std::size_t bytes = bytes_of(size_class);
        wide_bytes_ -= bytes;
        drop(block(ref), bytes);
        ref &= ~kWide;
        reinterpret_cast<Cell*>(slab_.at(ref))->size_class = 0;
    }
    slab_.free(ref);
}

void EdgePool::free(const EdgeList& list) {
    const EdgeList::Where w = list.where();
    if (w.size_class > 0) release_now(w.ref, w.size_class);
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

// --------------------------------------------------------------------------------------- reading

Edges EdgePool::edges(const EdgeList& list) const {
    for (;;) {
        const std::uint64_t word = list.word;
        const EdgeList::Where w = EdgeList::unpack_where(word);
        if (w.size_class > 0) return {block(w.ref), w.size};
        if (w.size == 0) return {};
        const Token token = list.token;
        if (list.word == word) return Edges(Edge{token, w.ref});
    }
}

NodeId EdgePool::find(const EdgeList& list, Token token) const {
    for (;;) {
        const std::uint64_t word = list.word;
        const Token extra = list.token;
        const EdgeList::Where w = EdgeList::unpack_where(word);
        if (w.size_class == 0) {
            if (w.size == 0) return kNoNode;
            if (list.word != word) continue;
            return extra == token ? w.ref : kNoNode;
        }
        EdgeWord* b = block(w.ref);
        const bool erasing = extra & 1;
        if (w.size_class >= kHashedClass && !erasing) {
            const NodeId to =
                with_slots(b, w.size_class, [token](auto slots) { return slots.look_up(token); });
            if (to != kNoNode) return to;
        } else {
            for (std::uint32_t i = 0; i < w.size; ++i)
                if (const Edge e = unpack(b[i]); e.token == token) return e.to;
        }
        if (list.where().ref == w.ref && list.token == extra) return kNoNode;
    }
}

// --------------------------------------------------------------------------------------- writing

std::uint32_t EdgePool::position(EdgeList::Where w, Token token) const {
    if (w.size_class >= kHashedClass)
        return with_slots(block(w.ref), w.size_class, [&](auto slots) {
            const auto e = slots.table[slots.find(token)].load();
            return e == slots.kEmpty ? kAbsent : std::uint32_t{e};
        });
    const EdgeWord* b = block(w.ref);
    for (std::uint32_t i = 0; i < w.size; ++i)
        if (unpack(b[i]).token == token) return i;
    return kAbsent;
}

std::uint32_t EdgePool::position(const EdgeList& list, Token token) const {
    const EdgeList::Where w = list.where();
    if (w.size_class == 0) return w.size == 1 && list.token == token ? 0 : kAbsent;
    return position(w, token);
}

void EdgePool::move_to(EdgeList& list, std::uint32_t size_class) {
    const EdgeList::Where old = list.where();
    if (size_class == 0) {
        const Edge one = unpack(block(old.ref)[0]);
        list.token = one.token;
        list.set({old.size, 0, old.size == 0 ? kNoNode : one.to});
        release(old.ref, old.size_class);
        return;
    }
    const BlockRef fresh = allocate(size_class);
    EdgeWord* b = block(fresh);
    if (old.size_class == 0)
        b[0] = pack({list.token, old.ref});
    else
        std::memcpy(static_cast<void*>(b), block(old.ref), old.size * sizeof(EdgeWord));
    if (size_class >= kHashedClass) with_slots(b, size_class, [&](auto slots) { slots.build(old.size); });
    list.set({old.size, size_class, fresh});
    if (old.size_class == 0)
        list.token = list.token & ~1;  // it was the edge's until now. A count may begin anywhere, but even
    else
        release(old.ref, old.size_class);
}

NodeId EdgePool::find_or_add(EdgeList& list, Token token, NodeId to) {
    EdgeList::Where w = list.where();
    if (w.size_class == 0) {
        if (w.size == 0) {
            list.token = token;
            list.set({1, 0, to});
            return kNoNode;
        }
        if (list.token == token) return w.ref;
    }
    const bool full = w.size == room_of(w.size_class);
    std::uint32_t slot = 0;
    if (w.size_class >= kHashedClass) {
        const NodeId found = with_slots(block(w.ref), w.size_class, [&](auto slots) {
            slot = slots.find(token);
            const auto e = slots.table[slot].load();
            return e != slots.kEmpty ? unpack(slots.edges[e]).to : kNoNode;
        });
        if (found != kNoNode) return found;
    } else if (w.size_class > 0) {
        const EdgeWord* b = block(w.ref);
        for (std::uint32_t i = 0; i < w.size; ++i)
            if (const Edge e = unpack(b[i]); e.token == token) return e.to;
    }
    if (full) {
        if (w.size == kMostEdges) throw std::length_error("a context has too many different next tokens");
        move_to(list, w.size_class + 1);
        w = list.where();
        if (w.size_class >= kHashedClass)
            slot = with_slots(block(w.ref), w.size_class, [&](auto slots) { return slots.find(token); });
    }
    EdgeWord* b = block(w.ref);
    b[w.size] = pack({token, to});
    if (w.size_class >= kHashedClass)
        with_slots(b, w.size_class, [&](auto slots) { slots.put(slot, w.size); });
    ++w.size;
    list.set(w);
    return kNoNode;
}

bool EdgePool::replace(EdgeList& list, Token token, NodeId from, NodeId to) {
    EdgeList::Where w = list.where();
    if (w.size_class == 0) {
        if (w.size == 0 || list.token != token || w.ref != from) return false;
        w.ref = to;
        list.set(w);
        return true;
    }
    const std::uint32_t i = position(w, token);
    if (i == kAbsent) return false;
    EdgeWord& e = block(w.ref)[i];
    if (unpack(e).to != from) return false;
    e = pack({token, to});
    return true;
}

bool EdgePool::erase(EdgeList& list, Token token, NodeId to) {
    EdgeList::Where w = list.where();
    if (w.size_class == 0) {
        if (w.size == 0 || list.token != token || w.ref != to) return false;
        list.set({});
        return true;
    }
    const std::uint32_t i = position(w, token);
    EdgeWord* b = block(w.ref);
    if (i == kAbsent || unpack(b[i]).to != to) return false;
    const std::uint32_t last = --w.size;
    const auto count_up = [&] {
        list.token = static_cast<Token>(static_cast<std::uint32_t>(list.token) + 1u);
    };
    count_up();
    if (w.size_class >= kHashedClass)
        with_slots(b, w.size_class, [&](auto slots) {
            slots.erase(slots.find(token));
            if (i != last) slots.put(slots.find(unpack(b[last]).token), i);
        });
    if (i != last) b[i] = b[last];
    list.set(w);
    count_up();
    // Shrinks below the next smaller room, so that a block at a boundary does not move to and fro.
    std::uint32_t room = w.size_class;
    while (room > 0 && last <= std::max(1u, room_of(room - 1) * 2 / 3)) --room;
    if (room != w.size_class) move_to(list, room);
    return true;
}

void EdgePool::copy(const EdgeList& from, EdgeList& to) {
    EdgeList::Where w = from.where();
    to.token = from.token;
    if (w.size_class > 0) {
        const BlockRef fresh = allocate(w.size_class);
        std::memcpy(static_cast<void*>(block(fresh)), block(w.ref),
                    w.size_class >= kHashedClass ? bytes_of(w.size_class) : w.size * sizeof(EdgeWord));
        w.ref = fresh;
    }
    to.set(w);
}

void EdgePool::prefetch_slot(const EdgeList& list, Token token) const {
    const EdgeList::Where w = list.where();
    if (w.size_class >= kHashedClass)
        with_slots(block(w.ref), w.size_class,
                   [&](auto slots) { __builtin_prefetch(&slots.table[slots.home(token)]); });
    else if (w.size_class > 0)
        __builtin_prefetch(block(w.ref));
}

void EdgePool::prefetch_edge(const EdgeList& list, Token token) const {
    const EdgeList::Where w = list.where();
    if (w.size_class >= kHashedClass)
        with_slots(block(w.ref), w.size_class, [&](auto slots) {
            const auto e = slots.table[slots.home(token)].load();
            if (e != slots.kEmpty) __builtin_prefetch(&slots.edges[e]);
            __builtin_prefetch(&slots.edges[w.size - 1]);  // erasing moves it
        });
}

const char* EdgePool::broken(const EdgeList& list) const {
    const EdgeList::Where w = list.where();
    if (w.size > room_of(w.size_class)) return "an edge list holds more than its room";
    if (w.size_class == 0) return nullptr;
    if (w.size == 0) return "an empty edge list holds a block";
    if (list.token & 1) return "an erase was never finished";
    return nullptr;
}

bool EdgePool::finds(const EdgeList& list, std::uint32_t i) const {
    const EdgeList::Where w = list.where();
    if (w.size_class == 0) return true;
    const Edge e = unpack(block(w.ref)[i]);
    return position(w, e.token) == i && find(list, e.token) == e.to;
}

}  // namespace suffixsvc
