// LSD radix sort of keys: one pass per 11 bits that differ, linear in the number of keys.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ngram/ngram_key.h"

namespace suffixsvc {

// Returns the sorted keys, which are in `keys` or in `scratch`, both of `size`.
template <unsigned K>
Key<K>* sort_keys(Key<K>* keys, Key<K>* scratch, std::size_t size, unsigned total_bits) {
    constexpr unsigned kDigit = 11;
    constexpr std::size_t kFew = 1u << 12;  // for fewer keys, the counters would cost more
    if (size < kFew) {
        std::sort(keys, keys + size);
        return keys;
    }
    const unsigned passes = (total_bits + kDigit - 1) / kDigit;
    std::vector<std::uint32_t> counts(std::size_t{passes} << kDigit);
    for (std::size_t i = 0; i < size; ++i)
        for (unsigned p = 0; p < passes; ++p)
            ++counts[(std::size_t{p} << kDigit) + keys[i].bits(p * kDigit, kDigit)];
    for (unsigned p = 0; p < passes; ++p) {
        std::uint32_t* const of = counts.data() + (std::size_t{p} << kDigit);
        if (of[keys[0].bits(p * kDigit, kDigit)] == size) continue;  // all keys agree in this digit
        std::uint32_t at = 0;
        for (std::size_t d = 0; d < std::size_t{1} << kDigit; ++d) at += std::exchange(of[d], at);
        for (std::size_t i = 0; i < size; ++i) scratch[of[keys[i].bits(p * kDigit, kDigit)]++] = keys[i];
        std::swap(keys, scratch);
    }
    return keys;
}

}  // namespace suffixsvc
