#include "edges.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace suffixsvc {

namespace {
constexpr std::uint32_t kEmpty = 0xFFFFFFFFu;
constexpr std::uint32_t kAbsent = 0xFFFFFFFFu;
constexpr std::size_t kFirstChunk = 256;              // edges
constexpr std::uint32_t kMostEdges = (1u << 27) - 1;  // of one node

std::uint32_t hash_of(Token token) {
    auto x = static_cast<std::uint32_t>(token) * 0x9E3779B1u;
    return x ^ (x >> 15);
}
}  // namespace

EdgePool::EdgePool() : free_(32) {}

EdgePool::Block EdgePool::allocate(std::uint32_t size_class) {
    auto& spare = free_[size_class];
    if (!spare.empty()) {
        Block b = spare.back();
        spare.pop_back();
        return b;
    }
    const std::size_t edges = block_edges(size_class);
    constexpr std::size_t kMost = std::size_t{1} << kChunkBits;
    if (edges > kMost / 4) {  // a wide node gets a chunk of its own
        chunks_.push_back(std::make_unique<Edge[]>(edges));
        chunk_edges_.push_back(edges);
        return static_cast<Block>(chunks_.size() - 1) << kChunkBits;
    }
    if (open_used_ + edges > open_size_) {
        // Chunks grow with the index: a session's own index stays small.
        open_size_ =
            std::max(edges, std::min(kMost, kFirstChunk << std::min<std::size_t>(chunks_.size() / 2, 8)));
        chunks_.push_back(std::make_unique<Edge[]>(open_size_));
        chunk_edges_.push_back(open_size_);
        open_chunk_ = static_cast<std::uint32_t>(chunks_.size() - 1);
        open_used_ = 0;
    }
    const Block b = open_chunk_ << kChunkBits | static_cast<std::uint32_t>(open_used_);
    open_used_ += edges;
    return b;
}

void EdgePool::release(Block b, std::uint32_t size_class) { free_[size_class].push_back(b); }

std::uint32_t EdgePool::index_slot(const Edge* b, std::uint32_t size_class, Token token) const {
    const std::uint32_t mask = (2u << size_class) - 1;
    const std::uint32_t* table = slots(b, size_class);
    std::uint32_t i = hash_of(token) & mask;
    while (table[i] != kEmpty && b[table[i]].token != token) i = (i + 1) & mask;
    return i;
}

void EdgePool::index_insert(Edge* b, std::uint32_t size_class, std::uint32_t entry) {
    slots(b, size_class)[index_slot(b, size_class, b[entry].token)] = entry;
}

void EdgePool::index_erase(Edge* b, std::uint32_t size_class, std::uint32_t slot) {
    // Linear probing without tombstones: entries behind the hole move up where their home allows it.
    const std::uint32_t mask = (2u << size_class) - 1;
    std::uint32_t* table = slots(b, size_class);
    std::uint32_t hole = slot;
    for (std::uint32_t i = (hole + 1) & mask; table[i] != kEmpty; i = (i + 1) & mask) {
        const std::uint32_t home = hash_of(b[table[i]].token) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            table[hole] = table[i];
            hole = i;
        }
    }
    table[hole] = kEmpty;
}

std::uint32_t EdgePool::position(const EdgeList& list, Token token) const {
    const Edge* b = entries(list);
    if (list.size_class >= kHashedClass) {
        const std::uint32_t entry = slots(b, list.size_class)[index_slot(b, list.size_class, token)];
        return entry == kEmpty ? kAbsent : entry;
    }
    for (std::uint32_t i = 0; i < list.size; ++i)
        if (b[i].token == token) return i;
    return kAbsent;
}

NodeId EdgePool::find(const EdgeList& list, Token token) const {
    if (list.size == 0) return kNoNode;
    const std::uint32_t i = position(list, token);
    return i == kAbsent ? kNoNode : entries(list)[i].to;
}

void EdgePool::move_to(EdgeList& list, std::uint32_t size_class) {
    const Block fresh = allocate(size_class);
    Edge* to = block(fresh);
    const Edge* from = entries(list);
    std::memcpy(to, from, list.size * sizeof(Edge));
    if (size_class >= kHashedClass) {
        std::memset(slots(to, size_class), 0xFF, (std::size_t{2} << size_class) * sizeof(std::uint32_t));
        for (std::uint32_t i = 0; i < list.size; ++i) index_insert(to, size_class, i);
    }
    if (list.size_class > 0) release(list.one.to, list.size_class);
    list.size_class = size_class & 31u;
    list.one = Edge{0, fresh};
}

void EdgePool::add(EdgeList& list, Token token, NodeId to) {
    if (list.size == 0 && list.size_class == 0) {
        list.one = Edge{token, to};
        list.size = 1;
        return;
    }
    const std::uint32_t capacity = list.size_class == 0 ? 1 : 1u << list.size_class;
    if (list.size == capacity) move_to(list, list.size_class + 1);
    Edge* b = block(list.one.to);
    b[list.size] = Edge{token, to};
    if (list.size_class >= kHashedClass) index_insert(b, list.size_class, list.size);
    list.size = (list.size + 1) & kMostEdges;
}

void EdgePool::set(EdgeList& list, Token token, NodeId to) {
    if (list.size_class == 0) {
        list.one.to = to;
        return;
    }
    const std::uint32_t i = position(list, token);
    assert(i != kAbsent);
    block(list.one.to)[i].to = to;
}

bool EdgePool::erase(EdgeList& list, Token token) {
    if (list.size == 0) return false;
    const std::uint32_t i = position(list, token);
    if (i == kAbsent) return false;
    if (list.size_class == 0) {
        list.size = 0;
        return true;
    }
    Edge* b = block(list.one.to);
    const std::uint32_t last = list.size - 1;
    if (list.size_class >= kHashedClass) {
        index_erase(b, list.size_class, index_slot(b, list.size_class, token));
        if (i != last) slots(b, list.size_class)[index_slot(b, list.size_class, b[last].token)] = i;
    }
    b[i] = b[last];
    list.size = last & kMostEdges;
    if (last == 1) {
        const Edge only = b[0];
        release(list.one.to, list.size_class);
        list.size_class = 0;
        list.one = only;
    } else if (list.size_class > 1 && last <= (1u << list.size_class) / 4) {
        move_to(list, list.size_class - 1);
    }
    return true;
}

void EdgePool::copy(const EdgeList& from, EdgeList& to) {
    to.size = 0;
    to.size_class = 0;
    if (from.size_class == 0) {
        to = from;
        return;
    }
    const Block fresh = allocate(from.size_class);
    std::memcpy(block(fresh), block(from.one.to), block_edges(from.size_class) * sizeof(Edge));
    to.size = from.size;
    to.size_class = from.size_class;
    to.one = Edge{0, fresh};
}

void EdgePool::clear(EdgeList& list) {
    if (list.size_class > 0) release(list.one.to, list.size_class);
    list = EdgeList{};
}

std::size_t EdgePool::bytes() const {
    std::size_t edges = 0;
    for (std::size_t n : chunk_edges_) edges += n;
    return edges * sizeof(Edge);
}

const char* EdgePool::broken(const EdgeList& list) const {
    if (list.size_class == 0)
        return list.size <= 1 ? nullptr : "an inline edge list holds more than one edge";
    if (list.size < 2) return "an edge block holds fewer than two edges";
    if (list.size > (1u << list.size_class)) return "an edge block holds more than its capacity";
    const Edge* b = entries(list);
    for (std::uint32_t i = 0; i < list.size; ++i)
        if (position(list, b[i].token) != i) return "an edge is not found where it stands";
    return nullptr;
}

}  // namespace suffixsvc
