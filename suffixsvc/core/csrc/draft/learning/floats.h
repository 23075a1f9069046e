// Vectors of four floats. They use the compilers' vector types, since auto-vectorisation of loops is not
// guaranteed and these are the hottest lines of a draft.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace suffixsvc {

using Float4 = float __attribute__((vector_size(16)));
using Int4 = std::int32_t __attribute__((vector_size(16)));

inline Float4 load4(const float* from) {
    Float4 x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
inline void store4(float* to, Float4 x) { std::memcpy(to, &x, sizeof x); }

// ln(odds), with odds clamped to [1e-4, 1e4]; absolute error below 2e-5.
inline Float4 stretch_odds(Float4 odds) {
    const Float4 least = odds > 1e-4f ? odds : Float4{} + 1e-4f;
    const Int4 bits = std::bit_cast<Int4>(least < 1e4f ? least : Float4{} + 1e4f);
    const Float4 exponent = __builtin_convertvector((bits >> 23) - 127, Float4);
    const Float4 m = std::bit_cast<Float4>((bits & 0x007FFFFF) | 0x3F800000);
    // log2(m) = (m - 1) * (1 + (m - 2) * r(m)): exact at 1 and 2; r is a least-squares fit.
    const Float4 r = ((0.04400469f * m - 0.27832841f) * m + 0.69067262f) * m - 0.89808921f;
    return 0.69314718f * (exponent + (m - 1.f) * (1.f + (m - 2.f) * r));
}

}  // namespace suffixsvc
