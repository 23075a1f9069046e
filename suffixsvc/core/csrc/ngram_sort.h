// Sorts keys by their bits, least significant digit first: a pass per 11 bits that differ, linear in the
// number of keys whatever they are.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ngram_key.h"

namespace suffixsvc {

// The sorted keys are where the result points: at `keys` or at `scratch`, both of `size`.
template <unsigned K>
Key<K>* sort_keys(Key<K>* keys, Key<K>* scratch, std::size_t size, unsigned total_bits) {
    constexpr unsigned kDigit = 11;
    constexpr std::size_t kFew = 1u << 12;  // below, the counters would cost more than the keys
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
        if (of[keys[0].bits(p * kDigit, kDigit)] == size) continue;  // all alike here
        std::uint32_t at = 0;
        for (std::size_t d = 0; d < std::size_t{1} << kDigit; ++d) at += std::exchange(of[d], at);
        for (std::size_t i = 0; i < size; ++i) scratch[of[keys[i].bits(p * kDigit, kDigit)]++] = keys[i];
        std::swap(keys, scratch);
    }
    return keys;
}

}  // namespace suffixsvc
