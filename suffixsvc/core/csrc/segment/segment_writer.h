// Writes a segment file atomically: a temporary file in the same folder, synced, renamed, the folder synced.
// An unfinished file is removed with its writer; after a kill, a file with a name ending in kSegmentTemporary
// may be left, which may be removed at the next start.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "base/map_guard.h"
#include "segment/segment_format.h"

namespace suffixsvc {

inline constexpr const char* kSegmentTemporary = ".segment-tmp";

// Progress and cancellation of a build or merge, for other threads. Thread-safe.
struct SegmentJob {
    std::atomic<bool> cancelled{false};
    std::atomic<double> done{0.0};  // 0 .. 1
};

class SegmentWriter {
  public:
    SegmentWriter() = default;
    ~SegmentWriter();
    SegmentWriter(const SegmentWriter&) = delete;
    SegmentWriter& operator=(const SegmentWriter&) = delete;

    // The first failure, of any call; later calls do nothing.
    const FileFault& fault() const { return fault_; }

    bool open(const std::string& path);
    bool write(std::uint64_t offset, const void* data, std::size_t size);
    // Maps the file as written so far, read-only, until the next map() or the end of the writer; nullptr
    // on failure.
    const std::uint8_t* map(std::uint64_t size);
    // Writes checksums and header, syncs and renames. The counts must be those that determined the layout.
    bool finish(const SegmentHeader& header);
    bool cancel();  // sets the fault; returns false

  private:
    bool fail(const char* what, int error);
    void unmap();
    void send(std::uint64_t more);

    std::string path_;
    std::string temporary_;
    int fd_ = -1;
    std::uint64_t unsent_ = 0;  // bytes written whose writeback was not started yet
    void* mapped_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::atomic<bool> lost_{false};  // the written data could not be read again
    MapGuard guard_;
    FileFault fault_;
};

// Writes one column sequentially through a buffer.
class ColumnStream {
  public:
    ColumnStream(SegmentWriter& writer, std::uint64_t offset) : writer_(writer), offset_(offset) {
        buffer_.reserve(kBuffer);
    }
    template <typename T>
    void put(const T& value) {
        put_bytes(&value, sizeof value);
    }
    void put_code(std::uint32_t code, std::uint32_t width) { put_bytes(&code, width); }
    void put_bytes(const void* data, std::size_t size) {
        const std::size_t at = buffer_.size();
        if (at + size > kBuffer) {
            flush();
            if (size > kBuffer) {
                writer_.write(offset_, data, size);
                offset_ += size;
                return;
            }
        }
        const auto* bytes = static_cast<const std::uint8_t*>(data);
        buffer_.insert(buffer_.end(), bytes, bytes + size);
    }
    bool flush() {
        const bool ok = writer_.write(offset_, buffer_.data(), buffer_.size());
        offset_ += buffer_.size();
        buffer_.clear();
        return ok;
    }

  private:
    static constexpr std::size_t kBuffer = 1u << 18;
    SegmentWriter& writer_;
    std::uint64_t offset_;
    std::vector<std::uint8_t> buffer_;
};

template <typename T>
bool write_column(SegmentWriter& writer, std::uint64_t offset, const std::vector<T>& values) {
    return writer.write(offset, values.data(), values.size() * sizeof(T));
}

}  // namespace suffixsvc
