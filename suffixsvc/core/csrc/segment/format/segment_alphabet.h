// Maps token ids to codes: the code of an id is its rank among the ids of a segment, counted from 1; 0 is
// the separator.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "segment/format/segment_format.h"

namespace suffixsvc {

// `ids` must be ascending and outlive the alphabet. Immutable afterwards: any number of readers.
class Alphabet {
  public:
    Alphabet() = default;
    explicit Alphabet(std::span<const Token> ids) : ids_(ids) {
        if (ids.empty()) return;
        const auto largest = static_cast<std::uint64_t>(ids.back());
        // A bitmap with counts up to the largest id, where that is small, as it is for vocabularies.
        if (largest >= 64 * ids.size() + (1u << 20)) return;
        words_.resize(largest / 64 + 1);
        // The ids of a mapped file may become zeros at any moment.
        for (Token id : ids)
            if (const auto word = static_cast<std::size_t>(id) / 64; word < words_.size())
                words_[word].bits |= 1ull << (id % 64);
        std::uint32_t before = 0;
        for (Word& w : words_) {
            w.before = before;
            before += static_cast<std::uint32_t>(std::popcount(w.bits));
        }
    }

    // 0 if the id is not in the alphabet. Accepts any int32.
    std::uint32_t code(Token id) const {
        if (words_.empty()) {
            const auto at = std::lower_bound(ids_.begin(), ids_.end(), id);
            return at == ids_.end() || *at != id ? 0 : static_cast<std::uint32_t>(at - ids_.begin()) + 1;
        }
        const auto u = static_cast<std::uint32_t>(id);
        if (u / 64 >= words_.size()) return 0;
        const Word& w = words_[u / 64];
        const std::uint64_t bit = 1ull << (u % 64);
        if (!(w.bits & bit)) return 0;
        return w.before + ones(w.bits & (bit - 1)) + 1;
    }
    // `code` is 1 .. size().
    Token id(std::uint32_t code) const { return ids_[code - 1]; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(ids_.size()); }
    std::size_t bytes() const { return words_.size() * sizeof(Word); }

  private:
    // std::popcount calls a library function if the instruction is not enabled at compile time.
    static std::uint32_t ones(std::uint64_t x) {
        x -= (x >> 1) & 0x5555555555555555ull;
        x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
        return static_cast<std::uint32_t>(
            (((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Full) * 0x0101010101010101ull) >> 56);
    }
    struct Word {
        std::uint64_t bits = 0;
        std::uint32_t before = 0;
    };
    std::span<const Token> ids_;
    std::vector<Word> words_;
};

// Collects the distinct ids of texts.
class IdSet {
  public:
    void add(Token id) {
        const auto u = static_cast<std::uint32_t>(id);
        if (u >= kDense) {
            rest_.push_back(id);
            if (rest_.size() >= limit_) shrink();
            return;
        }
        if (u >= dense_.size()) dense_.resize(2 * std::size_t{u} + 64);
        dense_[u] = true;
    }
    std::vector<Token> sorted() {
        shrink();
        std::vector<Token> ids;
        for (std::size_t u = 0; u < dense_.size(); ++u)
            if (dense_[u]) ids.push_back(static_cast<Token>(u));
        ids.insert(ids.end(), rest_.begin(), rest_.end());
        return ids;
    }

  private:
    static constexpr std::uint32_t kDense = 1u << 24;
    void shrink() {
        std::sort(rest_.begin(), rest_.end());
        rest_.erase(std::unique(rest_.begin(), rest_.end()), rest_.end());
        limit_ = std::max(kFewest, 2 * rest_.size());
    }
    static constexpr std::size_t kFewest = 1u << 16;
    std::vector<bool> dense_;
    std::vector<Token> rest_;  // a set would take ten times the memory
    std::size_t limit_ = kFewest;
};

}  // namespace suffixsvc
