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
// Threads: a reader needs the owner's shared lock, a writer its exclusive one.
#pragma once

#include <cstdint>

#include "slab.h"

namespace suffixsvc {

using Token = std::int32_t;
using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xFFFFFFFFu;

struct Edge {
    Token token;
    NodeId to;
};

// What a node holds of its edges: 12 bytes.
struct EdgeList {
    std::uint32_t size : 26 = 0;
    std::uint32_t size_class : 6 = 0;  // of its block, 0 = none
    Edge one{-1, kNoNode};             // no block: the edge, if size is 1. With a block: one.to names it
};

class EdgePool {
  public:
    EdgePool();
    EdgePool(const EdgePool&) = delete;
    EdgePool& operator=(const EdgePool&) = delete;
    ~EdgePool() { clear(); }

    // In insertion order; valid until the next write.
    const Edge* edges(const EdgeList& list) const {
        return list.size_class == 0 ? &list.one : block(list.one.to);
    }
    NodeId find(const EdgeList& list, Token token) const;
    // Where the token leads, or kNoNode after adding an edge to `to`.
    NodeId find_or_add(EdgeList& list, Token token, NodeId to);
    // Lets the token's edge lead to `to` where it leads to `from`; false where it does not.
    bool replace(EdgeList& list, Token token, NodeId from, NodeId to);
    // Erases the token's edge where it leads to `to`; false where it does not.
    bool erase(EdgeList& list, Token token, NodeId to);
    // `to` must hold no block.
    void copy(const EdgeList& from, EdgeList& to);
    void free(EdgeList& list);
    // Frees all blocks and gives their memory back.
    void clear();

    // The two steps of a look-up that is about to happen, each a cache miss before it.
    void prefetch_slot(const EdgeList& list, Token token) const;
    void prefetch_edge(const EdgeList& list, Token token) const;

    std::size_t bytes() const { return slab_.bytes() + wide_bytes_; }
    std::size_t used_bytes() const { return slab_.used_bytes() + wide_bytes_; }
    // Names the first broken invariant of a list, or returns nullptr.
    const char* broken(const EdgeList& list) const;

  private:
    // Names a block: a unit of the slab, or (top bit set) the cell of the slab that points to a wide one.
    using BlockRef = std::uint32_t;
    static constexpr BlockRef kWide = 0x80000000u;
    struct Cell {
        std::uint32_t size_class;  // 0: a free cell
        std::uint32_t unused;      // the slab's while it is free
        Edge* block;
    };

    Edge* block(BlockRef ref) const {
        if (ref & kWide) [[unlikely]]
            return reinterpret_cast<Cell*>(slab_.at(ref & ~kWide))->block;
        return reinterpret_cast<Edge*>(slab_.at(ref));
    }
    BlockRef allocate(std::uint32_t size_class);
    void release(BlockRef ref, std::uint32_t size_class);
    std::uint32_t position(const EdgeList& list, Token token) const;
    void move_to(EdgeList& list, std::uint32_t size_class);

    Slab<8, 512> slab_;
    std::size_t wide_bytes_ = 0;
};

}  // namespace suffixsvc
