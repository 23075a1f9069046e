// What a node carries beyond its fixed part: one block with its counters and its next-token edges.
//
//   up to 16 edges   [counters][e0 e1 .. e(n-1) | room]
//   more             [counters][e0 e1 .. e(n-1) | room][slot slot slot ...]   a hash index, 2 slots an edge;
//                                                        a slot has 1, 2 or 4 bytes, as the room needs
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

struct Block {
    std::int32_t unsent;     // the part of the node's count that its link does not know of yet
    std::uint32_t kids;      // nodes whose link this is
    std::uint32_t kids_xor;  // exclusive or of their ids
    std::uint32_t ends;      // positions of live texts whose whole prefix is the node's string
    Token recent;            // the token that last followed it, as far as growing touched it; or -1
    std::uint32_t size : 26;
    std::uint32_t size_class : 6;

    Edge* edges() { return reinterpret_cast<Edge*>(this + 1); }
    const Edge* edges() const { return reinterpret_cast<const Edge*>(this + 1); }
};
static_assert(sizeof(Block) == 24);

// Names a block: a unit of the slab, or (top bit set) the cell of the slab that points to a wide one.
using BlockRef = std::uint32_t;

class EdgePool {
  public:
    EdgePool();
    EdgePool(const EdgePool&) = delete;
    EdgePool& operator=(const EdgePool&) = delete;
    ~EdgePool() { clear(); }

    Block* block(BlockRef ref) const {
        if (ref & kWide) [[unlikely]]
            return reinterpret_cast<Cell*>(slab_.at(ref & ~kWide))->block;
        return reinterpret_cast<Block*>(slab_.at(ref));
    }
    // No counts, no edges, room for one; `recent` is -1.
    BlockRef make();
    // The same edges; the counters are copied as well.
    BlockRef copy(BlockRef ref);
    void free(BlockRef ref);
    // Frees all blocks and gives their memory back.
    void clear();

    NodeId find(const Block* b, Token token) const;
    // Where the token leads, or kNoNode after adding an edge to `to`. `ref` changes where the block moves.
    NodeId find_or_add(BlockRef& ref, Token token, NodeId to);
    // Lets the token's edge lead to `to` where it leads to `from`; false where it does not.
    bool replace(BlockRef ref, Token token, NodeId from, NodeId to);
    // Erases the token's edge where it leads to `to`; false where it does not. `ref` may change.
    bool erase(BlockRef& ref, Token token, NodeId to);

    void prefetch(BlockRef ref) const {
        if (!(ref & kWide)) __builtin_prefetch(slab_.at(ref));
    }
    // First step of a look-up in a wide block that is about to happen.
    void prefetch_slot(const Block* b, Token token) const;

    std::size_t bytes() const { return slab_.bytes() + wide_bytes_; }
    // Names the first broken invariant of a block, or returns nullptr.
    const char* broken(const Block* b) const;

  private:
    static constexpr BlockRef kWide = 0x80000000u;
    struct Cell {
        std::uint32_t live;
        std::uint32_t unused;  // the slab's while it is free
        Block* block;
    };

    BlockRef allocate(std::uint32_t size_class);
    std::uint32_t position(const Block* b, Token token) const;
    void move_to(BlockRef& ref, std::uint32_t size_class);

    Slab<8, 512> slab_;
    std::size_t wide_bytes_ = 0;
};

}  // namespace suffixsvc
