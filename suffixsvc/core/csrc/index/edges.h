// Next-token edges of the index's nodes.
//
//   0 or 1 edge     inline in the node   {token, target}
//   2 .. 16         a block of edges     [e0 e1 .. e(n-1) | free]
//   more            with a hash table    [e0 e1 .. e(n-1) | free][bucket bucket ...]   2 buckets per edge; a
//                                         bucket has 1, 2 or 4 bytes, depending on the capacity
//
// Edges keep the order in which they were inserted (an erase moves the last one into the hole), so the first
// few are roughly the most frequent: in nodes with many edges, drafting scans only these.
//
// A block grows by a third to a half, by moving. Blocks of up to 1 KB lie in a slab (base/memory/slab.h),
// larger ones in separate allocations that are freed as soon as the block moves.
//
// Threads: one writer and concurrent readers (base/memory/epoch_guard.h). A reader that iterates over a list
// while an edge is erased may still meet that edge, and may meet the last one, which moves into the hole,
// twice; or not at all, if an edge is added at the same moment. A lookup never misses an edge. Protocol:
//
//   list        one word: number of edges, and location. Edges are written before they are counted.
//   edge        one word. An inline edge has its token in a second word: the pair is consistent if the list
//               word is the same before and after, as the target of an erased edge is not reused while a
//               reader is active.
//   block       a block that the list has moved away from stays unchanged until no reader is active.
//   lookup      a hit is correct. A miss may be caused by an erase that was moving the edge: it is correct if
//               no edge was erased meanwhile. During an erase edges are scanned in order, since the hash
//               table is being repaired.
#pragma once

#include <cstdint>

#include "base/memory/epoch_guard.h"
#include "base/memory/slab.h"

namespace suffixsvc {

using Token = std::int32_t;
using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFFu;

struct Edge {
    Token token;
    NodeId to;
};

using EdgeWord = AtomicField<std::uint64_t>;
inline EdgeWord pack(Edge e) {
    return static_cast<std::uint64_t>(e.to) << 32 | static_cast<std::uint32_t>(e.token);
}
inline Edge unpack(std::uint64_t word) {
    return {static_cast<Token>(static_cast<std::uint32_t>(word)), static_cast<NodeId>(word >> 32)};
}

// The edge list of a node: 16 bytes.
struct EdgeList {
    struct Where {
        std::uint32_t size = 0;        // number of edges, at most 2^26 - 1
        std::uint32_t size_class = 0;  // of the block; 0: no block
        // without a block: target of the edge, if size is 1; with a block: its BlockRef
        std::uint32_t ref = kNoNode;
    };

    Where where() const { return unpack_where(word); }
    void set(Where w) { word = pack_where(w); }
    static std::uint64_t pack_where(Where w) {
        return static_cast<std::uint64_t>(w.ref) << 32 | w.size_class << 26 | w.size;
    }
    static Where unpack_where(std::uint64_t w) {
        return {static_cast<std::uint32_t>(w) & ((1u << 26) - 1), static_cast<std::uint32_t>(w) >> 26,
                static_cast<std::uint32_t>(w >> 32)};
    }

    AtomicField<std::uint64_t> word{pack_where({})};
    // Without a block: the edge's token, if size is 1. With a block: incremented when an erase begins and
    // when it ends (odd: an erase is in progress).
    AtomicField<Token> token{-1};
    AtomicField<Token> recent{-1};  // for the owner of the list
};
static_assert(sizeof(EdgeList) == 16);

// A snapshot of a node's edges; valid while the reader's EpochGuard is held.
class Edges {
  public:
    Edges() = default;
    explicit Edges(Edge one) : size_(1), one_(one) {}
    Edges(const EdgeWord* block, std::uint32_t size) : block_(block), size_(size) {}

    std::size_t size() const { return size_; }
    Edge operator[](std::size_t i) const { return block_ != nullptr ? unpack(block_[i]) : one_; }

  private:
    const EdgeWord* block_ = nullptr;
    std::uint32_t size_ = 0;
    Edge one_{-1, kNoNode};
};

// An object that a writer has unlinked from an index.
struct Retired {
    enum Kind : std::uint8_t { block, body, node } kind;
    std::uint8_t size_class;  // of a block
    std::uint32_t ref;
};

class EdgePool {
  public:
    // Freed blocks go to the retire list if there are readers, and from there to release_now().
    EdgePool(RetireList<Retired>& retire_list, bool readers);
    EdgePool(const EdgePool&) = delete;
    EdgePool& operator=(const EdgePool&) = delete;
    ~EdgePool();

    // In insertion order.
    Edges edges(const EdgeList& list) const;
    NodeId find(const EdgeList& list, Token token) const;
    // The token's target, or kNoNode after an edge to `to` was added.
    NodeId find_or_add(EdgeList& list, Token token, NodeId to);
    // Redirects the token's edge from `from` to `to`; false if it does not lead to `from`.
    bool replace(EdgeList& list, Token token, NodeId from, NodeId to);
    // Erases the token's edge to `to`; false if there is no such edge.
    bool erase(EdgeList& list, Token token, NodeId to);
    // `to` must not hold a block.
    void copy(const EdgeList& from, EdgeList& to);
    // Frees the block of a list that no reader can reach.
    void free(const EdgeList& list);
    void release_now(std::uint32_t ref, std::uint32_t size_class);
    // Returns memory that holds no block to the system.
    void trim() { slab_.trim(); }
    void populate() { slab_.populate(); }

    // Prefetch the two memory accesses of a lookup that is about to happen.
    void prefetch_bucket(const EdgeList& list, Token token) const;
    void prefetch_edge(const EdgeList& list, Token token) const;
    void prefetch_block(EdgeList::Where w) const {
        if (w.size_class > 0) __builtin_prefetch(block(w.ref));
    }

    std::size_t bytes() const { return slab_.bytes() + large_bytes_; }
    std::size_t used_bytes() const { return slab_.used_bytes() + large_bytes_; }
    // The violated invariant of a list as a whole, or nullptr.
    const char* violation(const EdgeList& list) const;
    // Whether edge i is found by its token.
    bool finds(const EdgeList& list, std::uint32_t i) const;

  private:
    // A block: a unit of the slab, or (top bit set) the slab cell that points to a large block.
    using BlockRef = std::uint32_t;
    static constexpr BlockRef kLarge = 0x80000000u;
    struct Cell {
        std::uint32_t size_class;  // 0: a free cell
        std::uint32_t unused;      // used by the slab while the cell is free
        EdgeWord* block;
    };

    EdgeWord* block(BlockRef ref) const {
        if (ref & kLarge) [[unlikely]]
            return reinterpret_cast<Cell*>(slab_.at(ref & ~kLarge))->block;
        return reinterpret_cast<EdgeWord*>(slab_.at(ref));
    }
    BlockRef allocate(std::uint32_t size_class);
    void release(BlockRef ref, std::uint32_t size_class);
    std::uint32_t position(EdgeList::Where w, Token token) const;
    void move_to(EdgeList& list, std::uint32_t size_class);

    RetireList<Retired>& retire_list_;
    bool readers_;
    Slab<8, 512> slab_;
    std::size_t large_bytes_ = 0;
};

}  // namespace suffixsvc
