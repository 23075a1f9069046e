// The file format of a sealed segment; docs/format.md is the contract.
//
//   header 512 | columns (see Column), each at a multiple of 64 | block checksums
//
// The position of every column follows from the counts in the header alone (layout_of): a reader computes the
// layout and compares it with the size of the file, so the format has no offsets to validate.
//
// The text column holds all texts, oldest first, with a separator (code 0) before each and after the last.
// Tokens are coded by their rank in the alphabet (1 ..), so codes sort as ids do and take 2, 3 or 4 bytes.
//
//   text      |0|a b c d|0|x b c|0|   a: given to the session, not written (text_context = 1)
//   position   0 1 2 3 4 5 6 7 8 9
//
//   entry  order  its context, newest token first        next  lcp
//     0      6    (none)                                  x     0
//     1      2    a                                       b     0
//     2      3    b a                                     c     0
//     3      8    b x                                     c     1
//     4      4    c b a                                   d     0
//     5      7    x                                       b     0
//
// An entry is a position where a model wrote a token (`next`). Its context is the tokens before it in the
// text, given or written, newest first and at most max_context of them; entries are sorted by it. So contexts
// of increasing length that end in the same tokens are nested ranges of entries, and their followers are one
// run of `next`. Equal contexts are ordered by age.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/files/file_fault.h"

namespace suffixsvc {

static_assert(std::endian::native == std::endian::little, "segments are mapped: little-endian machines only");

using Token = std::int32_t;

inline constexpr std::uint32_t kSegmentVersion = 1;
// Depth of the sort; at most 127: an lcp is a byte of which segment_find.cpp needs the top bit.
inline constexpr std::uint32_t kSegmentContext = 64;
inline constexpr std::uint32_t kSegmentBlock = 1u << 16;  // bytes that share a checksum
// Maximum positions of the text column. The margin below 2^32 lets code add small steps (the next position,
// eight entries of lcps) to positions and entries in 32 bits, and keeps kNoHub and kNoEntry unused.
inline constexpr std::uint32_t kSegmentMaxText = 0xFFFF0000u;
inline constexpr std::uint32_t kColumnAlignment = 64;
inline constexpr std::uint32_t kHubFollowers = 8;  // precomputed followers per hub
inline constexpr std::uint32_t kHubBlock = 4096;   // entries per element of hub_index
inline constexpr std::uint32_t kNoHub = 0xFFFFFFFFu;
inline constexpr std::uint32_t kNoEntry = 0xFFFFFFFFu;
inline constexpr std::array<char, 8> kSegmentMagic = {'S', 'X', 'S', 'E', 'G', '\r', '\n', '\x1a'};

// Counts that determine the layout.
struct SegmentCounts {
    std::uint32_t code_bytes = 2;  // 2, 3 or 4
    std::uint32_t alphabet = 0;    // distinct token ids
    std::uint32_t text = 0;        // positions, separators included
    std::uint32_t entries = 0;     // counted tokens
    std::uint32_t texts = 0;
    std::uint32_t occurrences = 0;  // occurrences of texts in outputs
    std::uint32_t hubs = 0;
    std::uint32_t hub_min = 0;  // every context with at least this many entries is a hub
};

struct SegmentHeader {
    std::array<char, 8> magic = kSegmentMagic;
    std::uint32_t version = kSegmentVersion;
    std::uint32_t max_context = kSegmentContext;
    std::uint32_t block_bytes = kSegmentBlock;
    std::uint32_t sums_crc = 0;  // of the block checksums
    std::uint64_t file_bytes = 0;
    SegmentCounts counts;
    std::uint64_t first_lsn = 0;  // of all occurrences
    std::uint64_t last_lsn = 0;
    std::array<std::uint8_t, 428> zero{};
    std::uint32_t crc = 0;  // of the 508 bytes before it
};
static_assert(sizeof(SegmentHeader) == 512);

// A frequent context with precomputed strongest followers: an interval of the lcp tree with at least hub_min
// entries. Hubs are in preorder; a parent is the next smaller interval around its child.
struct SegmentHub {
    std::uint32_t end = 0;  // entries [hub_start[i], end)
    std::uint32_t parent = kNoHub;
    std::uint32_t total = 0;   // votes of all followers, saturating: one per entry and output
    std::uint32_t newest = 0;  // position of the newest entry's token
    std::uint8_t depth = 0;    // tokens that all its contexts share
    std::uint8_t followers = 0;
    std::uint16_t zero = 0;
    std::array<std::uint32_t, kHubFollowers> code{};  // strongest first; ties: the newer first
    std::array<std::uint32_t, kHubFollowers> votes{};
    // Where to begin a search for the context extended by this follower: of the first entry that it follows,
    // the entry of the next position of the same text; kNoEntry if the text ends there. Only a hint.
    std::array<std::uint32_t, kHubFollowers> target{};
};
static_assert(sizeof(SegmentHub) == 116);

// The columns, in the order of the file; layout_of() has their sizes.
enum class Column : std::size_t {
    alphabet,      // i32[alphabet], ascending
    buckets,       // u32[alphabet + 2]: entries whose newest context token has code c: [c], [c + 1]
    text,          // code[text]
    order,         // u32[entries]: position of an entry's next token
    next,          // code[entries]
    lcp,           // u8[entries]: tokens shared with the context of the entry before
    text_start,    // u32[texts + 1]: position of the first token; the last is `text`
    text_context,  // u8[texts]: first tokens that are context only
    text_age,      // u64[texts], ascending: the newest LSN it was sealed with, also after that was forgotten
    occ_lsn,       // u64[occurrences], ascending: the output ...
    occ_text,      // u32[occurrences]: ... that this text occurs in
    hub_start,     // u32[hubs], ascending
    hub_index,     // u32[entries / kHubBlock + 2]: first hub that starts at or after entry kHubBlock * i
    hubs,          // SegmentHub[hubs]
    sums,          // u32 crc-32c of each block of everything between the header and here
    count
};
inline constexpr std::size_t kColumns = static_cast<std::size_t>(Column::count);

struct SegmentLayout {
    struct Extent {
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
    };
    std::array<Extent, kColumns> columns{};
    std::uint64_t file_bytes = 0;
    std::uint64_t blocks = 0;

    const Extent& operator[](Column c) const { return columns[static_cast<std::size_t>(c)]; }
};

SegmentLayout layout_of(const SegmentCounts& counts);

constexpr std::uint32_t code_bytes_for(std::uint32_t alphabet) {
    return alphabet <= 0xFFFFu ? 2u : alphabet <= 0xFFFFFFu ? 3u : 4u;
}

// Reads one byte too many at width 3: every column is followed by others.
template <std::uint32_t W>
inline std::uint32_t load_code(const std::uint8_t* column, std::uint64_t i) {
    std::uint32_t code = 0;
    if constexpr (W == 2) {
        std::uint16_t half;
        std::memcpy(&half, column + i * 2, 2);
        code = half;
    } else {
        std::memcpy(&code, column + i * W, 4);
        if constexpr (W == 3) code &= 0xFFFFFFu;
    }
    return code;
}

inline std::uint32_t load_code(const std::uint8_t* column, std::uint32_t width, std::uint64_t i) {
    return width == 2   ? load_code<2>(column, i)
           : width == 3 ? load_code<3>(column, i)
                        : load_code<4>(column, i);
}

}  // namespace suffixsvc
