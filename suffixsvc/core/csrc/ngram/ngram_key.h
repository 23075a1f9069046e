// Windows of tokens as integer keys with the same sort order, for counting n-grams.
//
// A window is a token and up to `highest` tokens that follow it; every n-gram with its follower, of every
// order up to `highest`, is a prefix of one window. So one sort of windows sorts the n-grams of all orders.
//
//   text  7 8 9, orders 1 to 2      windows  7 8 9      n-grams  7 -> 8, 7 8 -> 9
//                                            8 9 .               8 -> 9
//                                            9 . .               (none)
//
// A key holds, from its highest bits down, the codes of the window (token + 1, 0 after the end of the text)
// and the smallest order that the window counts for: if its first tokens are context only, the shorter
// n-grams, whose follower is context, do not count.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace suffixsvc {

using Token = std::int32_t;

inline constexpr unsigned kMaxOrder = 16;
inline constexpr unsigned kMaxKeyWords = 9;  // 17 codes of 32 bits and the smallest order

struct KeyShape {
    unsigned lowest = 1;  // orders counted: 1 <= lowest <= highest <= kMaxOrder
    unsigned highest = 4;
    unsigned bits = 32;  // bits of a code

    unsigned order_bits() const { return static_cast<unsigned>(std::bit_width(highest)); }
    unsigned total_bits() const { return (highest + 1) * bits + order_bits(); }
    unsigned words() const { return (total_bits() + 63) / 64; }
    bool operator==(const KeyShape&) const = default;
};

template <unsigned K>
struct Key {
    std::array<std::uint64_t, K> words;  // most significant first

    auto operator<=>(const Key&) const = default;

    // `width` bits from bit `from` on, counted from the least significant; width <= 32.
    std::uint32_t bits(unsigned from, unsigned width) const {
        const unsigned word = K - 1 - from / 64;
        const unsigned at = from % 64;
        std::uint64_t value = words[word] >> at;
        if (at + width > 64 && word > 0) value |= words[word - 1] << (64 - at);
        return static_cast<std::uint32_t>(value & ((std::uint64_t{1} << width) - 1));
    }
    // Sets the bits from `from` on to `value`; they must be 0.
    void put(unsigned from, std::uint32_t value) {
        const unsigned word = K - 1 - from / 64;
        const unsigned at = from % 64;
        words[word] |= std::uint64_t{value} << at;
        if (at > 32 && word > 0) words[word - 1] |= std::uint64_t{value} >> (64 - at);
    }
    void shift_right(unsigned by) {  // 1 <= by <= 63
        for (unsigned i = K - 1; i > 0; --i) words[i] = words[i] >> by | words[i - 1] << (64 - by);
        words[0] >>= by;
    }
};

// Reads keys of one shape.
template <unsigned K>
class KeyReader {
  public:
    explicit KeyReader(const KeyShape& shape)
        : bits_(shape.bits), low_(shape.order_bits()), top_(shape.highest * shape.bits + low_) {}
    // The j-th code of the window, the oldest first; 0 after the end of the text.
    std::uint32_t code(const Key<K>& key, unsigned j) const { return key.bits(top_ - j * bits_, bits_); }
    unsigned least_order(const Key<K>& key) const { return key.bits(0, low_); }

  private:
    unsigned bits_;
    unsigned low_;
    unsigned top_;
};

// Calls `use(key)` for every window of a text that counts for an order: followers of n-grams are counted from
// position `first` on, the tokens before are context. The tokens must be in range.
template <unsigned K, typename Use>
void for_windows(const KeyShape& shape, const Token* text, std::size_t size, std::size_t first, Use&& use) {
    const unsigned low = shape.order_bits();
    const unsigned top = shape.highest * shape.bits + low;
    const std::uint64_t keep = ~((std::uint64_t{1} << low) - 1);
    const std::size_t begin = first > shape.highest ? first - shape.highest : 0;
    Key<K> window{};
    for (std::size_t i = size; i-- > begin;) {
        window.shift_right(shape.bits);
        window.words[K - 1] &= keep;
        window.put(top, static_cast<std::uint32_t>(text[i]) + 1);
        const std::size_t least = first > i && first - i > shape.lowest ? first - i : shape.lowest;
        if (least > shape.highest || i + least >= size) continue;
        Key<K> key = window;
        key.words[K - 1] |= least;
        use(key);
    }
}

// Calls `use.template operator()<K>()` with the smallest compiled K of at least `words` words.
template <typename Use>
decltype(auto) with_key_words(unsigned words, Use&& use) {
    switch (words) {
        case 1:
            return use.template operator()<1>();
        case 2:
            return use.template operator()<2>();
        case 3:
            return use.template operator()<3>();
        case 4:
        case 5:
            return use.template operator()<5>();
        default:
            return use.template operator()<9>();
    }
}

}  // namespace suffixsvc
