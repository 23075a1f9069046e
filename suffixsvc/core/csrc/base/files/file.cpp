#include "base/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/files/crc32c.h"

namespace suffixsvc {

File::File(File&& other) noexcept : name_(std::move(other.name_)), fd_(std::exchange(other.fd_, -1)) {}

bool File::open(const FilePath& path, int flags) {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
    return fd_ >= 0;
}

File::~File() {
    if (fd_ >= 0) ::close(fd_);
}

FileFault File::failed(const char* verb) const {
    const int error = errno;
    return FileFault::from_errno(std::string("cannot ") + verb + " " + name_, error);
}

std::uint64_t File::size() const {
    struct stat status{};
    if (::fstat(fd_, &status) != 0) throw failed("read");
    return static_cast<std::uint64_t>(status.st_size);
}

std::size_t File::read(std::uint64_t at, void* to, std::size_t bytes) const {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t n =
            ::pread(fd_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw failed("read");
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
    }
    return done;
}

void File::write(std::uint64_t at, const void* data, std::size_t bytes) {
    // Writeback is started early: a sync of everything at the end would delay the commits of the store. It
    // does not wait, since that would consume an I/O error that the final sync has to report.
    constexpr std::uint64_t kPart = 16u << 20;
    for (std::size_t done = 0; done < bytes;) {
        const ssize_t n =
            ::pwrite(fd_, static_cast<const char*>(data) + done,
                     std::min<std::size_t>(bytes - done, 1u << 30), static_cast<off_t>(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) throw failed("write");
        done += static_cast<std::size_t>(n);
        unsent_ += static_cast<std::uint64_t>(n);
        if (unsent_ < kPart) continue;
        unsent_ = 0;
#ifdef __linux__
        ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
    }
}

void File::sync() {
    if (::fsync(fd_) != 0) throw failed("sync");
}

void File::close() {
    // interrupted by a signal, it has closed the descriptor; fsync has stored the data
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) throw failed("close");
}

NewFile::NewFile(const FilePath& path, int flags, std::string name) : File(std::move(name)) {
    if (!open(path, O_RDWR | O_CREAT | flags)) throw failed("create");
    path_ = path.text;
}

NewFile::~NewFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
}

void FileStream::flush() {
    crc_ = crc32c(buffer_.data(), buffer_.size(), crc_);
    file_.write(offset_, buffer_.data(), buffer_.size());
    offset_ += buffer_.size();
    buffer_.clear();
}

}  // namespace suffixsvc
