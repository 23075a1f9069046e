// Next-token edges of the index's nodes.
//
//   0 or 1 edge     inline in the node   {token, target}
//   2 .. 16         a block of edges     [e0 e1 .. e(n-1) | room]
//   more            with a hash index    [e0 e1 .. e(n-1) | room][slot slot slot ...]   2 slots an edge; a
//                                         slot has 1, 2 or 4 bytes, as the room needs
//
// Edges keep the order in which they were inserted (an erase moves the last one into the hole), so that
// the first few are, roughly, the most frequent: that is what drafting scans in wide nodes.
//
// A block grows in steps of a third to a half, by moving. Blocks of up to 1 KB lie in a slab (slab.h),
// wide ones in memory of their own that goes back to the system as soon as they move.
//
// Threads: one writer, and readers beside it (grace.h). A reader that goes through a list while an edge is
// erased may still meet that edge, and may meet the last one, which moves into the hole, twice; or, if an
// edge is added in the same moment, not at all. A look-up never misses. How:
//
//   a list      is one word: how many edges, and where. Edges are written before they are counted.
//   an edge     is one word. Inline its token is another: right if the list is the same before and after, as
//               an edge that was erased leads to a node that is not used again while somebody looks.
//   a block     that the list has moved away from stays as it is until nobody looks.
//   a look-up   that finds a token is right. One that finds nothing may have missed what an erase was moving:
//               it is right if no edge was erased meanwhile; during an erase edges are looked through in
//               order, since the hash index is being mended.
#pragma once

#include <cstdint>
#include <iterator>

#include "grace.h"
#include "slab.h"

namespace suffixsvc {

using Token = std::int32_t;
using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFFu;

struct Edge {
    Token token;
    NodeId to;
};

using EdgeWord = Word<std::uint64_t>;
inline EdgeWord pack(Edge e) {
    return static_cast<std::uint64_t>(e.to) << 32 | static_cast<std::uint32_t>(e.token);
}
inline Edge unpack(std::uint64_t word) {
    return {static_cast<Token>(static_cast<std::uint32_t>(word)), static_cast<NodeId>(word >> 32)};
}

// What a node holds of its edges: 16 bytes.
struct EdgeList {
    struct Where {
        std::uint32_t size = 0;        // at most 2^26 - 1
        std::uint32_t size_class = 0;  // of the block, 0 = none
        std::uint32_t ref = kNoNode;   // no block: where the edge leads, if size is 1. With a block: its name
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

    Word<std::uint64_t> word{pack_where({})};
    // No block: the edge's token, if size is 1. With a block: counted up when an erase begins and when it
    // ends.
    Word<Token> token{-1};
    Word<Token> recent{-1};  // the owner's
};
static_assert(sizeof(EdgeList) == 16);

// A node's edges as they were when this was made; valid while the reader is.
class Edges {
  public:
    Edges() = default;
    explicit Edges(Edge one) : size_(1), one_(one) {}
    Edges(const EdgeWord* block, std::uint32_t size) : block_(block), size_(size) {}

    std::size_t size() const { return size_; }
    Edge operator[](std::size_t i) const { return block_ != nullptr ? unpack(block_[i]) : one_; }

    struct Iterator {
        const Edges* edges;
        std::size_t i;
        Edge operator*() const { return (*edges)[i]; }
        Iterator& operator++() {
            ++i;
            return *this;
        }
        bool operator!=(const Iterator& other) const { return i != other.i; }
    };
    Iterator begin() const { return {this, 0}; }
    Iterator end() const { return {this, size_}; }

  private:
    const EdgeWord* block_ = nullptr;
    std::uint32_t size_ = 0;
    Edge one_{-1, kNoNode};
};

// What a writer takes out of an index.
struct Retired {
    enum Kind : std::uint8_t { block, body, node } kind;
    std::uint8_t size_class;  // of a block
    std::uint32_t ref;
};

class EdgePool {
  public:
    // Blocks go to the limbo, if there are readers, and from there to release_now().
    EdgePool(Limbo<Retired>& limbo, bool readers);
    EdgePool(const EdgePool&) = delete;
    EdgePool& operator=(const EdgePool&) = delete;
    ~EdgePool() { clear(); }

    // In insertion order.
    Edges edges(const EdgeList& list) const;
    NodeId find(const EdgeList& list, Token token) const;
    // Where the token leads, or kNoNode after adding an edge to `to`.
    NodeId find_or_add(EdgeList& list, Token token, NodeId to);
    // Lets the token's edge lead to `to` where it leads to `from`; false where it does not.
    bool replace(EdgeList& list, Token token, NodeId from, NodeId to);
    // Erases the token's edge where it leads to `to`; false where it does not.
    bool erase(EdgeList& list, Token token, NodeId to);
    // `to` must hold no block.
    void copy(const EdgeList& from, EdgeList& to);
    // Frees the block of a list that nobody looks at any more.
    void free(const EdgeList& list);
    void release_now(std::uint32_t ref, std::uint32_t size_class);
    // Gives memory that holds no block back.
    void trim() { slab_.trim(); }
    void populate() { slab_.populate(); }

    // The two steps of a look-up that is about to happen, each a cache miss before it.
    void prefetch_slot(const EdgeList& list, Token token) const;
    void prefetch_edge(const EdgeList& list, Token token) const;
    void prefetch_block(EdgeList::Where w) const {
        if (w.size_class > 0) __builtin_prefetch(block(w.ref));
    }

    std::size_t bytes() const { return slab_.bytes() + wide_bytes_; }
    std::size_t used_bytes() const { return slab_.used_bytes() + wide_bytes_; }
    // What is wrong with a list as a whole, or nullptr.
    const char* broken(const EdgeList& list) const;
    // Whether its edge i is found by its token.
    bool finds(const EdgeList& list, std::uint32_t i) const;

  private:
    // Names a block: a unit of the slab, or (top bit set) the cell of the slab that points to a wide one.
    using BlockRef = std::uint32_t;
    static constexpr BlockRef kWide = 0x80000000u;
    struct Cell {
        std::uint32_t size_class;  // 0: a free cell
        std::uint32_t unused;      // the slab's while it is free
        EdgeWord* block;
    };

    EdgeWord* block(BlockRef ref) const {
        if (ref & kWide) [[unlikely]]
            return reinterpret_cast<Cell*>(slab_.at(ref & ~kWide))->block;
        return reinterpret_cast<EdgeWord*>(slab_.at(ref));
    }
    BlockRef allocate(std::uint32_t size_class);
    void release(BlockRef ref, std::uint32_t size_class);
    std::uint32_t position(const EdgeList& list, Token token) const;
    std::uint32_t position(EdgeList::Where w, Token token) const;
    void move_to(EdgeList& list, std::uint32_t size_class);
    void clear();

    Limbo<Retired>& limbo_;
    bool readers_;
    Slab<8, 512> slab_;
    std::size_t wide_bytes_ = 0;
};

}  // namespace suffixsvc
