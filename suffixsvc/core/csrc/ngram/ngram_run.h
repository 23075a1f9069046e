// A run: distinct keys in ascending order with their counts; a file between counting and merging.
//
//   header   "SFXNGRM1", version, words of a key, lowest order, highest order, bits of a code (u32 each),
//            crc32c of zeros in place of the header, the entries and the header, itself 0 there (u32),
//            entries, tokens counted (u64 each)
//   entries  words of the key, most significant first (u64 each), count (u32)
//
// Failures are thrown as FileFault. Little endian. A run lives as long as the build that wrote it; the format
// is internal and not documented elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "ngram/ngram_key.h"

namespace suffixsvc {

struct RunHeader {
    std::uint64_t magic = 0;
    std::uint32_t version = 0;
    std::uint32_t words = 0;
    std::uint32_t lowest = 0;
    std::uint32_t highest = 0;
    std::uint32_t bits = 0;
    std::uint32_t crc = 0;
    std::uint64_t entries = 0;
    std::uint64_t tokens = 0;

    KeyShape shape() const { return {lowest, highest, bits}; }
};
static_assert(sizeof(RunHeader) == 48);

template <unsigned K>
inline constexpr std::size_t kEntryBytes = 8 * K + 4;

template <unsigned K>
class RunWriter {
  public:
    explicit RunWriter(const FilePath& path);
    void put(const Key<K>& key, std::uint64_t count) {
        const auto held = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, 0xffffffffu));
        stream_.put(key.words.data(), 8 * K);
        stream_.put(&held, 4);
    }
    void finish(const KeyShape& shape, std::uint64_t tokens);  // keeps the file

  private:
    NewFile file_;
    FileStream stream_;
};

// Reads and validates the header of a run.
RunHeader read_run_header(const FilePath& path);
// Reads a whole run and verifies its checksum.
void check_run(const FilePath& path);

// Iterates over the entries of a run, from the first whose oldest token has code `low` or more to the last
// below `high`.
template <unsigned K>
class RunReader {
  public:
    RunReader(const FilePath& path, const RunHeader& header, std::uint64_t low, std::uint64_t high,
              std::size_t buffer_bytes);
    bool done() const { return at_ == keys_.size() && next_ == end_; }
    const Key<K>& key() const { return keys_[at_]; }
    std::uint32_t count() const { return counts_[at_]; }
    void next() {
        if (++at_ == keys_.size() && next_ < end_) fill();
    }
    // The key of any entry of the run; invalidates the position of the reader.
    Key<K> at(std::uint64_t entry);
    std::uint64_t entries() const { return end_ - begin_; }

  private:
    void fill();
    void read(std::uint64_t entry, std::size_t entries);
    std::uint64_t lower_bound(std::uint64_t code, const KeyShape& shape, std::uint64_t entries);

    File file_;
    std::vector<std::uint8_t> raw_;
    std::vector<Key<K>> keys_;
    std::vector<std::uint32_t> counts_;
    std::size_t at_ = 0;
    std::uint64_t begin_, next_, end_;  // next_: first entry after the buffer
    std::size_t capacity_;
};

}  // namespace suffixsvc
