#include "base/files/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define SUFFIXSVC_HAS_SSE42 1
#endif

namespace suffixsvc {

namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;

// Eight tables: the effect of a byte that is followed by 0 .. 7 bytes.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables tables{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? kPolynomial : 0);
        tables[0][i] = c;
    }
    for (std::size_t t = 1; t < 8; ++t)
        for (std::size_t i = 0; i < 256; ++i)
            tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
    return tables;
}

constexpr Tables kTables = make_tables();

#ifdef SUFFIXSVC_HAS_SSE42
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const unsigned char* p, std::size_t size,
                                                             std::uint32_t before) {
    std::uint64_t crc = ~before;
    for (; size >= 8; p += 8, size -= 8) {
        std::uint64_t word;
        std::memcpy(&word, p, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    auto tail = static_cast<std::uint32_t>(crc);
    for (; size > 0; ++p, --size) tail = _mm_crc32_u8(tail, *p);
    return ~tail;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t before) {
    const auto* p = static_cast<const unsigned char*>(data);
    std::uint32_t crc = ~before;
    for (; size >= 8; p += 8, size -= 8) {
        crc ^= static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8 |
               static_cast<std::uint32_t>(p[2]) << 16 | static_cast<std::uint32_t>(p[3]) << 24;
        crc = kTables[7][crc & 0xFF] ^ kTables[6][(crc >> 8) & 0xFF] ^ kTables[5][(crc >> 16) & 0xFF] ^
              kTables[4][crc >> 24] ^ kTables[3][p[4]] ^ kTables[2][p[5]] ^ kTables[1][p[6]] ^
              kTables[0][p[7]];
    }
    for (; size > 0; ++p, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before) {
#ifdef SUFFIXSVC_HAS_SSE42
    static const bool has = __builtin_cpu_supports("sse4.2") != 0;
    if (has) return crc32c_sse42(static_cast<const unsigned char*>(data), size, before);
#endif
    return crc32c_portable(data, size, before);
}

}  // namespace suffixsvc
