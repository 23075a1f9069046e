// Layout of an edge block, and the hash table in large ones; for index/edges.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "index/edges.h"

namespace suffixsvc {

inline constexpr std::uint32_t kHashedClass =
    8;  // size class from which blocks have a hash table: capacity 24

// Capacities 1 2 3 4 6 8 12 16 24 32 48 ...
constexpr std::uint32_t capacity_of(std::uint32_t size_class) {
    if (size_class == 0) return 1;
    return (size_class & 1 ? 2u : 3u) << ((size_class - 1) / 2);
}

// The number of buckets is a power of two, at least two per edge.
constexpr std::uint32_t bucket_bits(std::uint32_t size_class) { return size_class / 2 + 2; }

constexpr std::uint32_t bucket_bytes(std::uint32_t size_class) {
    const std::uint32_t capacity = capacity_of(size_class);
    return capacity < 0xFF ? 1 : capacity < 0xFFFF ? 2 : 4;
}

constexpr std::size_t bytes_of(std::uint32_t size_class) {
    std::size_t bytes = capacity_of(size_class) * sizeof(Edge);
    if (size_class >= kHashedClass) bytes += std::size_t{bucket_bytes(size_class)} << bucket_bits(size_class);
    return bytes;
}

static_assert(capacity_of(1) == 2 && capacity_of(2) == 3 && capacity_of(7) == 16 && capacity_of(8) == 24);
static_assert((1u << bucket_bits(8)) == 64 && (1u << bucket_bits(9)) == 64 && (1u << bucket_bits(10)) == 128);

// The hash table after the edges of a block; Bucket is its integer type, all bits set means empty.
template <typename Bucket>
struct EdgeHash {
    EdgeWord* edges;
    AtomicField<Bucket>* table;
    std::uint32_t mask;
    std::uint32_t shift;
    static constexpr Bucket kEmpty = static_cast<Bucket>(~Bucket{0});

    EdgeHash(EdgeWord* block, std::uint32_t size_class)
        : edges(block),
          table(reinterpret_cast<AtomicField<Bucket>*>(block + capacity_of(size_class))),
          mask((1u << bucket_bits(size_class)) - 1),
          shift(32 - bucket_bits(size_class)) {}

    std::uint32_t home(Token token) const {
        return (static_cast<std::uint32_t>(token) * 0x9E3779B1u) >> shift;
    }
    // The token's bucket, or the empty one where it would be inserted. For the writer.
    std::uint32_t find(Token token) const {
        std::uint32_t i = home(token);
        for (Bucket e; (e = table[i]) != kEmpty && unpack(edges[e]).token != token;) i = (i + 1) & mask;
        return i;
    }
    // The token's target, or kNoNode if it is not found at this moment; probes each bucket once at most,
    // whatever the writer does.
    NodeId look_up(Token token) const {
        std::uint32_t i = home(token);
        for (std::uint32_t n = 0; n <= mask; ++n, i = (i + 1) & mask) {
            const Bucket e = table[i];
            if (e == kEmpty) break;
            const Edge edge = unpack(edges[e]);
            if (edge.token == token) return edge.to;
        }
        return kNoNode;
    }
    void put(std::uint32_t i, std::uint32_t e) { table[i] = static_cast<Bucket>(e); }
    void build(std::uint32_t size) {
        std::memset(static_cast<void*>(table), 0xFF, (std::size_t{mask} + 1) * sizeof(Bucket));
        for (std::uint32_t e = 0; e < size; ++e) {
            std::uint32_t i = home(unpack(edges[e]).token);
            while (table[i] != kEmpty) i = (i + 1) & mask;
            put(i, e);
        }
    }
    void erase(std::uint32_t hole) {
        // Linear probing without tombstones: buckets after the hole move up where their home position
        // allows it.
        Bucket e;
        for (std::uint32_t i = (hole + 1) & mask; (e = table[i]) != kEmpty; i = (i + 1) & mask)
            if (((i - home(unpack(edges[e]).token)) & mask) >= ((i - hole) & mask)) {
                table[hole] = e;
                hole = i;
            }
        table[hole] = kEmpty;
    }
};

// Calls f with the hash table of a block.
template <typename F>
auto with_hash(EdgeWord* block, std::uint32_t size_class, F&& f) {
    switch (bucket_bytes(size_class)) {
        case 1:
            return f(EdgeHash<std::uint8_t>(block, size_class));
        case 2:
            return f(EdgeHash<std::uint16_t>(block, size_class));
        default:
            return f(EdgeHash<std::uint32_t>(block, size_class));
    }
}

}  // namespace suffixsvc
