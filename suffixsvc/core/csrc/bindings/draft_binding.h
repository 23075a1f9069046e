// Conversion of drafts to NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "draft/session.h"

namespace suffixsvc {

namespace nb = nanobind;

inline std::string_view view(const nb::bytes& b) { return {b.c_str(), b.size()}; }

// A draft as arrays in one allocation: token_ids, parents, probs, sources, match_lens; None for an empty
// draft. `sources` maps the core's source numbers to others.
inline nb::object columns(const std::vector<DraftToken>& draft, std::string_view sources) {
    const std::size_t n = draft.size();
    if (n == 0) return nb::none();
    auto* words = new std::uint32_t[5 * n];
    nb::capsule owner(words, [](void* p) noexcept { delete[] static_cast<std::uint32_t*>(p); });
    auto* tokens = reinterpret_cast<std::int32_t*>(words);
    auto* parents = tokens + n;
    auto* probs = reinterpret_cast<float*>(words + 2 * n);
    auto* match_lens = reinterpret_cast<std::int32_t*>(words + 3 * n);
    auto* names = reinterpret_cast<std::uint8_t*>(words + 4 * n);
    for (std::size_t i = 0; i < n; ++i) {
        tokens[i] = draft[i].token;
        parents[i] = draft[i].parent;
        probs[i] = draft[i].p;
        match_lens[i] = static_cast<std::int32_t>(draft[i].match_len);
        names[i] = draft[i].source < sources.size() ? static_cast<std::uint8_t>(sources[draft[i].source]) : 0;
    }
    const auto array = [&](auto* data) {
        using T = std::remove_pointer_t<decltype(data)>;
        return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {n}, owner));
    };
    return nb::make_tuple(array(tokens), array(parents), array(probs), array(names), array(match_lens));
}

}  // namespace suffixsvc
