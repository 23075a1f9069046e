// CRC-32C (Castagnoli polynomial, reflected, as in RFC 3720). Detects every burst error of up to 32 bits, and
// any other damage with a probability of 1 - 2^-32. Uses the SSE 4.2 instruction where the processor has it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace suffixsvc {

// `before` is the checksum of the data that precedes `data`; 0 if there is none.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before = 0);
// The same without the instruction, for tests and for other processors.
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t before = 0);

}  // namespace suffixsvc
