#include "ngram/ngram_run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "ngram/ngram_words.h"

namespace suffixsvc {

namespace {

constexpr std::uint64_t kMagic = 0x31'4D'52'47'4E'58'46'53u;  // "SFXNGRM1"
constexpr std::uint32_t kVersion = 1;

class OpenFile {
  public:
    explicit OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    ~OpenFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    int fd() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

// Reads `bytes` from `at` on. Returns 0 on success, errno on failure, -1 if the file ends before.
int read_all(int fd, void* to, std::size_t bytes, std::uint64_t at) {
    auto* p = static_cast<std::uint8_t*>(to);
    while (bytes > 0) {
        const ssize_t n = ::pread(fd, p, bytes, static_cast<off_t>(at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return -1;
        p += n;
        at += static_cast<std::uint64_t>(n);
        bytes -= static_cast<std::size_t>(n);
    }
    return 0;
}

FileFault unreadable(const std::string& path, int error) {
    if (error < 0) return {FileFault::Kind::corrupt, "the run " + path + " is truncated", "", ""};
    return FileFault::from_errno("cannot read the run " + path, error);
}

// Words of a key of this shape in a run.
unsigned compiled_words(const KeyShape& shape) {
    return with_key_words(shape.words(), []<unsigned K>() { return K; });
}

// Extends `crc`, the checksum of zeros and entries, by the header.
std::uint32_t whole_crc(RunHeader header, std::uint32_t crc) {
    header.crc = 0;
    return crc32c(&header, sizeof header, crc);
}

FileFault check_header(const std::string& path, const RunHeader& h, std::uint64_t bytes) {
    const FileFault foreign{FileFault::Kind::foreign, path + " must be a run of this version", "", ""};
    if (h.magic != kMagic || h.version != kVersion) return foreign;
    const bool shaped = h.lowest >= 1 && h.lowest <= h.highest && h.highest <= kMaxOrder && h.bits >= 1 &&
                        h.bits <= 32 && h.words == compiled_words(h.shape());
    const std::uint64_t entry = std::uint64_t{8} * h.words + 4;
    if (!shaped || h.entries > (bytes - sizeof h) / entry || sizeof h + entry * h.entries != bytes)
        return {FileFault::Kind::corrupt, "the header of the run " + path + " is damaged", "", ""};
    return {};
}

}  // namespace

StreamFile::~StreamFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
}

bool StreamFile::create(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd_ < 0) {
        fault_ = FileFault::from_errno("cannot create " + path, errno);
        return false;
    }
    path_ = path;
    buffer_.reserve(kBuffer);
    return true;
}

bool StreamFile::write_all(const void* data, std::size_t bytes, std::uint64_t at) {
    if (fault_) return false;
    const auto* p = static_cast<const std::uint8_t*>(data);
    while (bytes > 0) {
        const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            fault_ = FileFault::from_errno("cannot write " + path_, errno);
            return false;
        }
        p += n;
        at += static_cast<std::uint64_t>(n);
        bytes -= static_cast<std::size_t>(n);
    }
    return true;
}

bool StreamFile::overwrite(std::uint64_t at, const void* data, std::size_t bytes) {
    return flush() && write_all(data, bytes, at);
}

bool StreamFile::flush() {
    crc_ = crc32c(buffer_.data(), buffer_.size(), crc_);
    const bool ok = write_all(buffer_.data(), buffer_.size(), written_);
    written_ += buffer_.size();
    buffer_.clear();
    return ok;
}

bool StreamFile::finish() {
    if (!flush()) return false;
    if (::fsync(fd_) != 0) {
        fault_ = FileFault::from_errno("cannot sync " + path_, errno);
        return false;
    }
    ::close(fd_);
    fd_ = -1;
    return true;
}

template <unsigned K>
bool RunWriter<K>::finish(const KeyShape& shape, std::uint64_t tokens) {
    RunHeader header{kMagic, kVersion, K, shape.lowest, shape.highest, shape.bits, 0, entries_, tokens};
    header.crc = whole_crc(header, file_.crc());
    if (!file_.overwrite(0, &header, sizeof header) || !file_.finish()) return false;
    file_.keep();
    return true;
}

RunHeader read_run_header(const std::string& path, FileFault& fault) {
    RunHeader header{};
    const OpenFile file(path);
    struct stat status{};
    if (file.fd() < 0 || ::fstat(file.fd(), &status) != 0) {
        fault = FileFault::from_errno("cannot read the run " + path, errno);
        return header;
    }
    if (const int error = read_all(file.fd(), &header, sizeof header, 0)) {
        fault = unreadable(path, error);
        return header;
    }
    fault = check_header(path, header, static_cast<std::uint64_t>(status.st_size));
    return header;
}

FileFault check_run(const std::string& path) {
    FileFault fault;
    const RunHeader header = read_run_header(path, fault);
    if (fault) return fault;
    const OpenFile file(path);
    if (file.fd() < 0) return FileFault::from_errno("cannot read the run " + path, errno);
    const RunHeader none{};
    std::uint32_t crc = crc32c(&none, sizeof none);
    const std::uint64_t end = sizeof header + (std::uint64_t{8} * header.words + 4) * header.entries;
    std::vector<std::uint8_t> buffer(1u << 20);
    for (std::uint64_t at = sizeof header; at < end;) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), end - at));
        if (const int error = read_all(file.fd(), buffer.data(), bytes, at)) return unreadable(path, error);
        crc = crc32c(buffer.data(), bytes, crc);
        at += bytes;
    }
    crc = whole_crc(header, crc);
    if (crc != header.crc)
        return {FileFault::Kind::corrupt, "the run " + path + " is damaged", std::to_string(header.crc),
                std::to_string(crc)};
    return {};
}

template <unsigned K>
RunReader<K>::~RunReader() {
    if (fd_ >= 0) ::close(fd_);
}

template <unsigned K>
RunReader<K>::RunReader(RunReader&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      begin_(other.begin_),
      next_(other.next_),
      end_(other.end_),
      capacity_(other.capacity_),
      at_(other.at_),
      in_buffer_(other.in_buffer_),
      raw_(std::move(other.raw_)),
      keys_(std::move(other.keys_)),
      counts_(std::move(other.counts_)),
      fault_(std::move(other.fault_)) {}

template <unsigned K>
bool RunReader<K>::open(const std::string& path, const RunHeader& header, std::uint64_t low,
                        std::uint64_t high, std::size_t buffer_bytes) {
    path_ = path;
    OpenFile file(path);
    if (file.fd() < 0) {
        fault_ = FileFault::from_errno("cannot read the run " + path, errno);
        return false;
    }
    fd_ = file.release();
    // Each entry is stored twice: as read, and aligned.
    capacity_ = std::max<std::size_t>(1, buffer_bytes / (2 * kEntryBytes<K>));
    begin_ = next_ = lower_bound(low, header.shape(), header.entries);
    // A damaged run may be unsorted, so the second bound may come first.
    end_ = std::max(begin_, lower_bound(high, header.shape(), header.entries));
    if (fault_) end_ = next_;
    if (next_ < end_) fill();
    return !fault_;
}

template <unsigned K>
bool RunReader<K>::read(std::uint64_t entry, std::size_t entries) {
    raw_.resize(entries * kEntryBytes<K>);
    const int error = read_all(fd_, raw_.data(), raw_.size(), sizeof(RunHeader) + entry * kEntryBytes<K>);
    if (!error) return true;
    fault_ = unreadable(path_, error);
    return false;
}

template <unsigned K>
bool RunReader<K>::at(std::uint64_t entry, Key<K>& key) {
    if (!read(entry, 1)) return false;
    std::memcpy(key.words.data(), raw_.data(), 8 * K);
    return true;
}

// The first entry whose oldest token has code `code` or more.
template <unsigned K>
std::uint64_t RunReader<K>::lower_bound(std::uint64_t code, const KeyShape& shape, std::uint64_t entries) {
    const KeyReader<K> reader(shape);
    std::uint64_t low = 0;
    std::uint64_t high = entries;
    while (low < high && !fault_) {
        const std::uint64_t middle = low + (high - low) / 2;
        Key<K> key;
        if (!at(middle, key)) break;
        if (reader.code(key, 0) < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

template <unsigned K>
void RunReader<K>::fill() {
    at_ = in_buffer_ = 0;
    const auto entries = static_cast<std::size_t>(std::min<std::uint64_t>(capacity_, end_ - next_));
    if (!read(next_, entries)) {
        next_ = end_;
        return;
    }
    keys_.resize(entries);
    counts_.resize(entries);
    for (std::size_t i = 0; i < entries; ++i) {
        std::memcpy(keys_[i].words.data(), raw_.data() + i * kEntryBytes<K>, 8 * K);
        std::memcpy(&counts_[i], raw_.data() + i * kEntryBytes<K> + 8 * K, 4);
    }
    in_buffer_ = entries;
    next_ += entries;
}

#define SUFFIXSVC_INSTANTIATE(K) \
    template class RunWriter<K>; \
    template class RunReader<K>;
SUFFIXSVC_INSTANTIATE(1)
SUFFIXSVC_INSTANTIATE(2)
SUFFIXSVC_INSTANTIATE(3)
SUFFIXSVC_INSTANTIATE(5)
SUFFIXSVC_INSTANTIATE(9)
#undef SUFFIXSVC_INSTANTIATE

}  // namespace suffixsvc
