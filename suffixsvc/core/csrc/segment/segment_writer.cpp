#include "segment/segment_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/crc32c.h"

namespace suffixsvc {

SegmentLayout layout_of(const SegmentCounts& c) {
    const std::uint64_t n = c.entries;
    const std::array<std::uint64_t, kColumns - 1> bytes = {
        std::uint64_t{4} * c.alphabet,
        std::uint64_t{4} * (std::uint64_t{c.alphabet} + 2),
        std::uint64_t{c.code_bytes} * c.text,
        4 * n,
        std::uint64_t{c.code_bytes} * n,
        n,
        std::uint64_t{4} * (std::uint64_t{c.texts} + 1),
        c.texts,
        std::uint64_t{8} * c.texts,
        std::uint64_t{8} * c.occurrences,
        std::uint64_t{4} * c.occurrences,
        std::uint64_t{4} * c.hubs,
        4 * (n / kHubBlock + 2),
        sizeof(SegmentHub) * std::uint64_t{c.hubs},
    };
    SegmentLayout layout;
    std::uint64_t at = sizeof(SegmentHeader);
    for (std::size_t i = 0; i + 1 < kColumns; ++i) {
        layout.columns[i] = {at, bytes[i]};
        at = (at + bytes[i] + 63) / 64 * 64;
    }
    layout.blocks = (at - sizeof(SegmentHeader) + kSegmentBlock - 1) / kSegmentBlock;
    layout.columns[kColumns - 1] = {at, 4 * layout.blocks};
    layout.file_bytes = at + 4 * layout.blocks;
    return layout;
}

SegmentWriter::~SegmentWriter() {
    unmap();
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void SegmentWriter::unmap() {
    guard_.end();  // first: another mapping may reuse the addresses
    if (mapped_) ::munmap(mapped_, mapped_bytes_);
    mapped_ = nullptr;
}

bool SegmentWriter::fail(const char* what, int error) {
    if (fault_) return false;
    fault_ = FileFault::from_errno(std::string("cannot ") + what + " the segment file " + path_, error);
    return false;
}

bool SegmentWriter::cancel() {
    if (!fault_)
        fault_ = {FileFault::Kind::cancelled, "building the segment " + path_ + " was cancelled", "", ""};
    return false;
}

bool SegmentWriter::open(const std::string& path) {
    static std::atomic<unsigned> serial{0};
    path_ = path;
    // Unique per process and call: two builders of one name do not share a file.
    temporary_ = path + "." + std::to_string(::getpid()) + "-" + std::to_string(serial++) + kSegmentTemporary;
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) {
        const int error = errno;
        temporary_.clear();
        return fail("create", error);
    }
    return true;
}

// Starts writeback early: a sync of everything at the end would delay the commits of the store. It does not
// wait, since that would consume an I/O error that the final sync has to report.
void SegmentWriter::send(std::uint64_t more) {
    constexpr std::uint64_t kPart = 16u << 20;
    unsent_ += more;
    if (unsent_ < kPart) return;
    unsent_ = 0;
#ifdef __linux__
    ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
}

bool SegmentWriter::write(std::uint64_t offset, const void* data, std::size_t size) {
    if (fault_) return false;
    const auto* p = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t n = ::pwrite(fd_, p, std::min<std::size_t>(size, 1u << 30), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fail("write", n < 0 ? errno : EIO);
        p += n;
        offset += static_cast<std::uint64_t>(n);
        size -= static_cast<std::size_t>(n);
        send(static_cast<std::uint64_t>(n));
    }
    return true;
}

const std::uint8_t* SegmentWriter::map(std::uint64_t size) {
    if (fault_) return nullptr;
    unmap();
    // Padding bytes become zeros, and the map does not extend beyond the end of the file.
    if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) {
        fail("extend", errno);
        return nullptr;
    }
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_, 0);
    if (p == MAP_FAILED) {
        fail("map", errno);
        return nullptr;
    }
    mapped_ = p;
    mapped_bytes_ = size;
    guard_.begin(p, size, false, lost_);
    return static_cast<const std::uint8_t*>(p);
}

bool SegmentWriter::finish(const SegmentHeader& header) {
    SegmentHeader h = header;
    const SegmentLayout layout = layout_of(h.counts);
    h.file_bytes = layout.file_bytes;
    const std::uint8_t* bytes = map(layout.file_bytes);
    if (!bytes) return false;
    const SegmentLayout::Extent& sums_at = layout[Column::sums];
    std::vector<std::uint32_t> sums;
    sums.reserve(layout.blocks);
    for (std::uint64_t at = sizeof h; at < sums_at.offset; at += kSegmentBlock)
        sums.push_back(crc32c(bytes + at, std::min<std::uint64_t>(kSegmentBlock, sums_at.offset - at)));
    if (lost_) return fail("read", EIO);
    h.sums_crc = crc32c(sums.data(), sums.size() * 4);
    h.crc = crc32c(&h, sizeof h - 4);
    if (!write_column(*this, sums_at.offset, sums) || !write(0, &h, sizeof h)) return false;
    unmap();
    if (::fsync(fd_) != 0) return fail("sync", errno);
    if (::close(fd_) != 0) {
        fd_ = -1;
        return fail("close", errno);
    }
    fd_ = -1;
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return fail("rename", errno);
    temporary_.clear();
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail("sync the folder of", errno);
    const bool synced = ::fsync(fd) == 0;
    const int error = errno;
    ::close(fd);
    return synced || fail("sync the folder of", error);
}

}  // namespace suffixsvc
