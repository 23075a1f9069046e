// Dispatch to the compiled key widths.
#pragma once

#include <utility>

#include "ngram/ngram_key.h"

namespace suffixsvc {

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
