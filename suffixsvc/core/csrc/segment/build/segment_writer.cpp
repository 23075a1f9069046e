#include "segment/build/segment_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/files/crc32c.h"

namespace suffixsvc {

namespace {

// Unique per process and call: two builders of one name do not share a file.
std::string temporary_name(const std::string& path) {
    static std::atomic<unsigned> serial{0};
    return path + "." + std::to_string(::getpid()) + "-" + std::to_string(serial++) + kSegmentTemporary;
}

}  // namespace

SegmentWriter::SegmentWriter(const FilePath& path)
    : path_(path.text),
      temporary_(temporary_name(path_)),
      file_({temporary_, path.utf8}, O_EXCL, "the segment file " + path_) {}

void SegmentWriter::unmap() {
    guard_.end();  // first: another mapping may reuse the addresses
    if (mapped_) ::munmap(mapped_, mapped_bytes_);
    mapped_ = nullptr;
}

const std::uint8_t* SegmentWriter::map(std::uint64_t size) {
    unmap();
    // Padding bytes become zeros, and the map does not extend beyond the end of the file.
    if (::ftruncate(file_.fd(), static_cast<off_t>(size)) != 0) throw file_.failed("extend");
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file_.fd(), 0);
    if (p == MAP_FAILED) throw file_.failed("map");
    mapped_ = p;
    mapped_bytes_ = size;
    guard_.begin(p, size, false, lost_);
    return static_cast<const std::uint8_t*>(p);
}

void SegmentWriter::finish(SegmentHeader header) {
    const SegmentLayout layout = layout_of(header.counts);
    header.file_bytes = layout.file_bytes;
    const std::uint8_t* bytes = map(layout.file_bytes);
    const SegmentLayout::Extent& sums_at = layout[Column::sums];
    std::vector<std::uint32_t> sums;
    sums.reserve(layout.blocks);
    for (std::uint64_t at = sizeof header; at < sums_at.offset; at += kSegmentBlock)
        sums.push_back(crc32c(bytes + at, std::min<std::uint64_t>(kSegmentBlock, sums_at.offset - at)));
    errno = EIO;
    if (lost_) throw file_.failed("read");
    header.sums_crc = crc32c(sums.data(), sums.size() * 4);
    header.crc = crc32c(&header, sizeof header - 4);
    write(sums_at, sums);
    file_.write(0, &header, sizeof header);
    unmap();
    file_.sync();
    file_.close();
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw file_.failed("rename");
    file_.keep();
    const std::size_t slash = path_.rfind('/');
    File folder("the folder of the segment file " + path_);
    if (!folder.open(slash == path_.npos ? "." : path_.substr(0, slash + 1), O_RDONLY | O_DIRECTORY))
        throw folder.failed("sync");
    folder.sync();
}

}  // namespace suffixsvc
