// CRC-32C (Castagnoli polynomial, reflected, as in RFC 3720): every burst of up to 32 damaged bits is
// noticed, any other damage but for one in 4 billion. Uses the SSE 4.2 instruction where the machine has it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace suffixsvc {

// `before` is the checksum of what comes before the data, 0 for nothing.
std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t before = 0);
// The same without the instruction, for tests and other machines.
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t before = 0);

}  // namespace suffixsvc
