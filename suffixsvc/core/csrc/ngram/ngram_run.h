// A run: distinct keys in ascending order with their counts; a file between counting and merging.
//
//   header   "SFXNGRM1", version, words of a key, lowest order, highest order, bits of a code (u32 each),
//            crc32c of zeros in place of the header, the entries and the header, itself 0 there (u32),
//            entries, tokens counted (u64 each)
//   entries  words of the key, most significant first (u64 each), count (u32)
//
// Little endian. A run lives as long as the build that wrote it; the format is internal and not
// documented elsewhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/file_fault.h"
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

// A file that is written sequentially through a buffer, and removed by the destructor unless keep()
// was called.
class StreamFile {
  public:
    StreamFile() = default;
    ~StreamFile();
    StreamFile(const StreamFile&) = delete;
    StreamFile& operator=(const StreamFile&) = delete;

    const FileFault& fault() const { return fault_; }
    std::uint64_t size() const { return size_; }
    // crc32c of all data put so far; overwrite() does not change it.
    std::uint32_t crc() {
        flush();
        return crc_;
    }

    bool create(const std::string& path);
    void put(const void* data, std::size_t bytes) {
        if (buffer_.size() + bytes > kBuffer) flush();
        const auto* from = static_cast<const std::uint8_t*>(data);
        buffer_.insert(buffer_.end(), from, from + bytes);
        size_ += bytes;
    }
    // Overwrites written data; the position of `put` does not change.
    bool overwrite(std::uint64_t at, const void* data, std::size_t bytes);
    bool flush();
    bool finish();  // syncs; put() must not be called afterwards
    void keep() { path_.clear(); }

  private:
    static constexpr std::size_t kBuffer = 1u << 20;
    bool write_all(const void* data, std::size_t bytes, std::uint64_t at);

    std::string path_;
    int fd_ = -1;
    std::uint64_t size_ = 0;
    std::uint64_t written_ = 0;
    std::uint32_t crc_ = 0;
    std::vector<std::uint8_t> buffer_;
    FileFault fault_;
};

template <unsigned K>
inline constexpr std::size_t kEntryBytes = 8 * K + 4;

template <unsigned K>
class RunWriter {
  public:
    bool create(const std::string& path) {
        const RunHeader none{};
        if (!file_.create(path)) return false;
        file_.put(&none, sizeof none);
        return true;
    }
    void put(const Key<K>& key, std::uint64_t count) {
        const std::uint32_t held = count > 0xffffffffu ? 0xffffffffu : static_cast<std::uint32_t>(count);
        std::array<std::uint8_t, kEntryBytes<K>> entry;
        std::memcpy(entry.data(), key.words.data(), 8 * K);
        std::memcpy(entry.data() + 8 * K, &held, 4);
        file_.put(entry.data(), entry.size());
        ++entries_;
    }
    bool finish(const KeyShape& shape, std::uint64_t tokens);  // keeps the file
    const FileFault& fault() const { return file_.fault(); }
    std::uint64_t entries() const { return entries_; }

  private:
    StreamFile file_;
    std::uint64_t entries_ = 0;
};

// Reads and validates the header of a run; errors are returned in `fault`.
RunHeader read_run_header(const std::string& path, FileFault& fault);
// Reads a whole run and verifies its checksum.
FileFault check_run(const std::string& path);

// Iterates over the entries of a run, from the first whose oldest token has code `low` or more to the last
// below `high`.
template <unsigned K>
class RunReader {
  public:
    RunReader() = default;
    ~RunReader();
    RunReader(RunReader&& other) noexcept;
    RunReader& operator=(RunReader&&) = delete;

    bool open(const std::string& path, const RunHeader& header, std::uint64_t low, std::uint64_t high,
              std::size_t buffer_bytes);
    bool done() const { return at_ == in_buffer_ && next_ == end_; }
    const Key<K>& key() const { return keys_[at_]; }
    std::uint32_t count() const { return counts_[at_]; }
    void next() {
        if (++at_ == in_buffer_ && next_ < end_) fill();
    }
    // The key of any entry of the run; invalidates the position of the reader.
    bool at(std::uint64_t entry, Key<K>& key);
    // The first failure; a reader that failed is done.
    const FileFault& fault() const { return fault_; }
    std::uint64_t entries() const { return end_ - begin_; }

  private:
    void fill();
    bool read(std::uint64_t entry, std::size_t entries);
    std::uint64_t lower_bound(std::uint64_t code, const KeyShape& shape, std::uint64_t entries);

    std::string path_;
    int fd_ = -1;
    std::uint64_t begin_ = 0;
    std::uint64_t next_ = 0;  // first entry after the buffer
    std::uint64_t end_ = 0;
    std::size_t capacity_ = 0;
    std::size_t at_ = 0;
    std::size_t in_buffer_ = 0;
    std::vector<std::uint8_t> raw_;
    std::vector<Key<K>> keys_;
    std::vector<std::uint32_t> counts_;
    FileFault fault_;
};

}  // namespace suffixsvc
