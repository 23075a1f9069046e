// Writes a segment file atomically: a temporary file in the same folder, synced, closed, renamed, the folder
// synced.
// An unfinished file is removed with its writer; after a kill, a file with a name ending in kSegmentTemporary
// may be left, which may be removed at the next start. Failures are thrown as FileFault.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "base/files/map_guard.h"
#include "segment/format/segment_format.h"

namespace suffixsvc {

inline constexpr const char* kSegmentTemporary = ".segment-tmp";

class SegmentWriter {
  public:
    explicit SegmentWriter(const FilePath& path);
    ~SegmentWriter() { unmap(); }
    SegmentWriter(const SegmentWriter&) = delete;
    SegmentWriter& operator=(const SegmentWriter&) = delete;

    // A stream that writes a column.
    FileStream stream(const SegmentLayout::Extent& column) { return FileStream(file_, column.offset); }
    template <typename T>
    void write(const SegmentLayout::Extent& column, const std::vector<T>& values) {
        file_.write(column.offset, values.data(), values.size() * sizeof(T));
    }
    // Maps the file as written so far, read-only, until the next map() or the end of the writer.
    const std::uint8_t* map(std::uint64_t size);
    // Writes checksums and header, syncs and renames. The counts must be those that determined the layout.
    void finish(SegmentHeader header);

  private:
    void unmap();

    std::string path_;
    std::string temporary_;
    NewFile file_;
    void* mapped_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::atomic<bool> lost_{false};  // the written data could not be read again
    MapGuard guard_;
};

inline void put_code(FileStream& stream, std::uint32_t code, std::uint32_t width) {
    stream.put(&code, width);
}

}  // namespace suffixsvc
