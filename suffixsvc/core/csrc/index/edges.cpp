#include "index/edges.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "index/edge_hash.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;
constexpr std::uint32_t kClasses = 51;          // capacity of 2^26 - 1 and less
constexpr std::uint32_t kSlabBytes = 1024;      // larger blocks are allocated separately,
constexpr std::size_t kMappedBytes = 64 << 10;  // from this size on directly from the system
constexpr std::uint32_t kMaxEdges = (1u << 26) - 1;

void* allocate_large(std::size_t bytes) {
    if (bytes >= kMappedBytes) {
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        return p;
    }
    void* p = std::malloc(bytes);
    if (p == nullptr) throw std::bad_alloc();
    return p;
}

void free_large(void* p, std::size_t bytes) {
    if (bytes >= kMappedBytes)
        munmap(p, bytes);
    else
        std::free(p);
}

constexpr std::uint32_t kCellUnits = 2;

}  // namespace

EdgePool::EdgePool(RetireList<Retired>& retire_list, bool readers)
    : retire_list_(retire_list), readers_(readers), slab_(kClasses + 1) {}

// ---------------------------------------------------------------------------------------- memory

EdgePool::BlockRef EdgePool::allocate(std::uint32_t size_class) {
    const std::size_t bytes = bytes_of(size_class);
    const bool large = bytes > kSlabBytes;
    const std::uint32_t unit = slab_.allocate(large ? kCellUnits : static_cast<std::uint32_t>(bytes / 8),
                                              large ? kClasses : size_class);
    if (unit & kLarge) throw std::bad_alloc();
    if (!large) return unit;
    *reinterpret_cast<Cell*>(slab_.at(unit)) =
        Cell{size_class, 0, static_cast<EdgeWord*>(allocate_large(bytes))};
    large_bytes_ += bytes;
    return unit | kLarge;
}

void EdgePool::release(BlockRef ref, std::uint32_t size_class) {
    if (readers_)
        retire_list_.put({Retired::block, static_cast<std::uint8_t>(size_class), ref}, bytes_of(size_class));
    else
        release_now(ref, size_class);
}

void EdgePool::release_now(BlockRef ref, std::uint32_t size_class) {
    if (ref & kLarge) {
        const std::size_t bytes = bytes_of(size_class);
        large_bytes_ -= bytes;
        free_large(block(ref), bytes);
        ref &= ~kLarge;
        reinterpret_cast<Cell*>(slab_.at(ref))->size_class = 0;
    }
    slab_.free(ref);
}

void EdgePool::free(const EdgeList& list) {
    const EdgeList::Where w = list.where();
    if (w.size_class > 0) release_now(w.ref, w.size_class);
}

EdgePool::~EdgePool() {
    const auto free_cells = [this](std::uint32_t first, std::uint32_t fresh, std::uint32_t size_class) {
        for (std::uint32_t u = 0; size_class == kClasses && u < fresh; u += kCellUnits) {
            const Cell* cell = reinterpret_cast<const Cell*>(slab_.at(first + u));
            if (cell->size_class != 0) free_large(cell->block, bytes_of(cell->size_class));
        }
    };
    for (std::uint32_t page = 0; page < slab_.pages(); ++page) slab_.for_page(page, free_cells);
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
            const NodeId to = with_hash(b, w.size_class, [token](auto hash) { return hash.look_up(token); });
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
        return with_hash(block(w.ref), w.size_class, [&](auto hash) {
            const auto e = hash.table[hash.find(token)].load();
            return e == hash.kEmpty ? kAbsent : std::uint32_t{e};
        });
    const EdgeWord* b = block(w.ref);
    for (std::uint32_t i = 0; i < w.size; ++i)
        if (unpack(b[i]).token == token) return i;
    return kAbsent;
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
    if (size_class >= kHashedClass) with_hash(b, size_class, [&](auto hash) { hash.build(old.size); });
    list.set({old.size, size_class, fresh});
    if (old.size_class == 0)
        // it was the edge's token until now; the erase count may begin with any even number
        list.token = list.token & ~1;
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
    const bool full = w.size == capacity_of(w.size_class);
    std::uint32_t bucket = 0;
    if (w.size_class >= kHashedClass) {
        const NodeId found = with_hash(block(w.ref), w.size_class, [&](auto hash) {
            bucket = hash.find(token);
            const auto e = hash.table[bucket].load();
            return e != hash.kEmpty ? unpack(hash.edges[e]).to : kNoNode;
        });
        if (found != kNoNode) return found;
    } else if (w.size_class > 0) {
        const EdgeWord* b = block(w.ref);
        for (std::uint32_t i = 0; i < w.size; ++i)
            if (const Edge e = unpack(b[i]); e.token == token) return e.to;
    }
    if (full) {
        if (w.size == kMaxEdges)
            throw std::length_error("distinct followers of a context must be at most 2^26 - 1");
        move_to(list, w.size_class + 1);
        w = list.where();
        if (w.size_class >= kHashedClass)
            bucket = with_hash(block(w.ref), w.size_class, [&](auto hash) { return hash.find(token); });
    }
    EdgeWord* b = block(w.ref);
    b[w.size] = pack({token, to});
    if (w.size_class >= kHashedClass)
        with_hash(b, w.size_class, [&](auto hash) { hash.put(bucket, w.size); });
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
        with_hash(b, w.size_class, [&](auto hash) {
            hash.erase(hash.find(token));
            if (i != last) hash.put(hash.find(unpack(b[last]).token), i);
        });
    if (i != last) b[i] = b[last];
    list.set(w);
    count_up();
    // Shrinks only well below the next smaller capacity, so that a block at a boundary does not move to
    // and fro.
    std::uint32_t smaller = w.size_class;
    while (smaller > 0 && last <= std::max(1u, capacity_of(smaller - 1) * 2 / 3)) --smaller;
    if (smaller != w.size_class) move_to(list, smaller);
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

void EdgePool::prefetch_bucket(const EdgeList& list, Token token) const {
    const EdgeList::Where w = list.where();
    if (w.size_class >= kHashedClass)
        with_hash(block(w.ref), w.size_class,
                  [&](auto hash) { __builtin_prefetch(&hash.table[hash.home(token)]); });
    else if (w.size_class > 0)
        __builtin_prefetch(block(w.ref));
}

void EdgePool::prefetch_edge(const EdgeList& list, Token token) const {
    const EdgeList::Where w = list.where();
    if (w.size_class >= kHashedClass)
        with_hash(block(w.ref), w.size_class, [&](auto hash) {
            const auto e = hash.table[hash.home(token)].load();
            if (e != hash.kEmpty) __builtin_prefetch(&hash.edges[e]);
            __builtin_prefetch(&hash.edges[w.size - 1]);  // an erase moves it
        });
}

const char* EdgePool::violation(const EdgeList& list) const {
    const EdgeList::Where w = list.where();
    if (w.size > capacity_of(w.size_class)) return "an edge list exceeds its capacity";
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
