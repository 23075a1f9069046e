// Next-token edges of the index's nodes.
//
//   0 edges   nothing
//   1 edge    inline in the node          {token, target}
//   2..16     a block of entries          [e0 e1 .. e(n-1) | free]
//   17..      entries and a hash index    [e0 e1 .. | free][slot slot slot ...]   2 slots an entry
//
// Entries keep the order in which they were inserted (an erase moves the last one into the hole), so
// that the first few are, roughly, the most frequent: that is what drafting scans in wide nodes.
// Blocks come in powers of two from chunks that never move; freed blocks are reused by size.
//
// Threads: a reader needs the owner's shared lock, a writer its exclusive one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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
    std::uint32_t size : 27 = 0;
    std::uint32_t size_class : 5 = 0;  // log2 of the block's capacity, 0 = inline or none
    Edge one{0, 0};                    // size == 1: the edge; size_class > 0: one.to is the block
};

class EdgePool {
  public:
    EdgePool();

    NodeId find(const EdgeList& list, Token token) const;
    // The token must not be there.
    void add(EdgeList& list, Token token, NodeId to);
    // The token must be there.
    void set(EdgeList& list, Token token, NodeId to);
    // Returns false where the token is not there.
    bool erase(EdgeList& list, Token token);
    void copy(const EdgeList& from, EdgeList& to);
    void clear(EdgeList& list);

    // Entries in insertion order; valid until the next write.
    const Edge* entries(const EdgeList& list) const {
        return list.size_class == 0 ? &list.one : block(list.one.to);
    }

    std::size_t bytes() const;
    // Names the first broken invariant of a list, or returns nullptr.
    const char* broken(const EdgeList& list) const;

  private:
    static constexpr std::uint32_t kChunkBits = 16;
    static constexpr std::uint32_t kHashedClass = 5;  // capacities from 32 on carry a hash index
    using Block = std::uint32_t;                      // chunk << kChunkBits | offset

    Edge* block(Block b) { return chunks_[b >> kChunkBits].get() + (b & ((1u << kChunkBits) - 1)); }
    const Edge* block(Block b) const {
        return chunks_[b >> kChunkBits].get() + (b & ((1u << kChunkBits) - 1));
    }
    static std::size_t block_edges(std::uint32_t size_class) {
        std::size_t capacity = std::size_t{1} << size_class;
        return size_class >= kHashedClass ? 2 * capacity : capacity;
    }
    std::uint32_t* slots(Edge* b, std::uint32_t size_class) const {
        return reinterpret_cast<std::uint32_t*>(b + (std::size_t{1} << size_class));
    }
    const std::uint32_t* slots(const Edge* b, std::uint32_t size_class) const {
        return reinterpret_cast<const std::uint32_t*>(b + (std::size_t{1} << size_class));
    }
    Block allocate(std::uint32_t size_class);
    void release(Block b, std::uint32_t size_class);
    void move_to(EdgeList& list, std::uint32_t size_class);
    void index_insert(Edge* b, std::uint32_t size_class, std::uint32_t entry);
    std::uint32_t index_slot(const Edge* b, std::uint32_t size_class, Token token) const;
    void index_erase(Edge* b, std::uint32_t size_class, std::uint32_t slot);
    std::uint32_t position(const EdgeList& list, Token token) const;

    std::vector<std::unique_ptr<Edge[]>> chunks_;
    std::vector<std::size_t> chunk_edges_;
    std::vector<std::vector<Block>> free_;  // by size class
    std::uint32_t open_chunk_ = 0;          // the chunk that small blocks are cut from
    std::size_t open_used_ = 0;
    std::size_t open_size_ = 0;
};

}  // namespace suffixsvc
