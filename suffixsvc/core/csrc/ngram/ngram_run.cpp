#include "ngram/ngram_run.h"

#include <fcntl.h>

#include <cstring>

#include "base/files/crc32c.h"

namespace suffixsvc {

namespace {

constexpr std::uint64_t kMagic = 0x31'4D'52'47'4E'58'46'53u;  // "SFXNGRM1"
constexpr std::uint32_t kVersion = 1;

std::string name_of(const FilePath& path) { return "the run " + path.text; }

File open_run(const FilePath& path) {
    File file(name_of(path));
    if (!file.open(path, O_RDONLY)) throw file.failed("read");
    return file;
}

FileFault damaged(const FilePath& path, const char* how, std::string expected = "", std::string got = "") {
    return {FileFault::Kind::damaged, name_of(path) + how, std::move(expected), std::move(got)};
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

std::uint64_t entry_bytes(const RunHeader& header) { return std::uint64_t{8} * header.words + 4; }

RunHeader header_of(const FilePath& path, const File& file) {
    RunHeader h{};
    const std::uint64_t bytes = file.size();
    if (file.read(0, &h, sizeof h) < sizeof h) throw damaged(path, " is truncated");
    if (h.magic != kMagic || h.version != kVersion) throw damaged(path, " must be a run of this version");
    const bool shaped = h.lowest >= 1 && h.lowest <= h.highest && h.highest <= kMaxOrder && h.bits >= 1 &&
                        h.bits <= 32 && h.words == compiled_words(h.shape());
    const std::uint64_t entry = entry_bytes(h);
    if (!shaped || h.entries > (bytes - sizeof h) / entry || sizeof h + entry * h.entries != bytes)
        throw damaged(path, " has a damaged header");
    return h;
}

}  // namespace

template <unsigned K>
RunWriter<K>::RunWriter(const FilePath& path) : file_(path, O_TRUNC, name_of(path)), stream_(file_) {
    const RunHeader none{};
    stream_.put(&none, sizeof none);
}

template <unsigned K>
void RunWriter<K>::finish(const KeyShape& shape, std::uint64_t tokens) {
    stream_.flush();
    const std::uint64_t entries = (stream_.offset() - sizeof(RunHeader)) / kEntryBytes<K>;
    RunHeader header{kMagic, kVersion, K, shape.lowest, shape.highest, shape.bits, 0, entries, tokens};
    header.crc = whole_crc(header, stream_.crc());
    file_.write(0, &header, sizeof header);
    file_.sync();
    file_.keep();
}

RunHeader read_run_header(const FilePath& path) { return header_of(path, open_run(path)); }

void check_run(const FilePath& path) {
    const File file = open_run(path);
    const RunHeader header = header_of(path, file), none{};
    std::uint32_t crc = crc32c(&none, sizeof none);
    const std::uint64_t end = sizeof header + entry_bytes(header) * header.entries;
    std::vector<std::uint8_t> buffer(1u << 20);
    for (std::uint64_t at = sizeof header; at < end;) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), end - at));
        if (file.read(at, buffer.data(), bytes) < bytes) throw damaged(path, " is truncated");
        crc = crc32c(buffer.data(), bytes, crc);
        at += bytes;
    }
    crc = whole_crc(header, crc);
    if (crc != header.crc)
        throw damaged(path, " is damaged", std::to_string(header.crc), std::to_string(crc));
}

template <unsigned K>
RunReader<K>::RunReader(const FilePath& path, const RunHeader& header, std::uint64_t low, std::uint64_t high,
                        std::size_t buffer_bytes)
    : file_(open_run(path)),
      begin_(lower_bound(low, header.shape(), header.entries)),
      next_(begin_),
      // A damaged run may be unsorted, so the second bound may come first.
      end_(std::max(begin_, lower_bound(high, header.shape(), header.entries))),
      // Each entry is stored twice: as read, and aligned.
      capacity_(std::max<std::size_t>(1, buffer_bytes / (2 * kEntryBytes<K>))) {
    if (next_ < end_) fill();
}

template <unsigned K>
void RunReader<K>::read(std::uint64_t entry, std::size_t entries) {
    raw_.resize(entries * kEntryBytes<K>);
    if (file_.read(sizeof(RunHeader) + entry * kEntryBytes<K>, raw_.data(), raw_.size()) < raw_.size())
        throw FileFault(FileFault::Kind::damaged, file_.name() + " is truncated");
}

template <unsigned K>
Key<K> RunReader<K>::at(std::uint64_t entry) {
    read(entry, 1);
    Key<K> key;
    std::memcpy(key.words.data(), raw_.data(), 8 * K);
    return key;
}

// The first entry whose oldest token has code `code` or more.
template <unsigned K>
std::uint64_t RunReader<K>::lower_bound(std::uint64_t code, const KeyShape& shape, std::uint64_t entries) {
    const KeyReader<K> reader(shape);
    std::uint64_t low = 0;
    for (std::uint64_t high = entries; low < high;) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (reader.code(at(middle), 0) < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

template <unsigned K>
void RunReader<K>::fill() {
    const auto entries = static_cast<std::size_t>(std::min<std::uint64_t>(capacity_, end_ - next_));
    read(next_, entries);
    keys_.resize(entries);
    counts_.resize(entries);
    for (std::size_t i = 0; i < entries; ++i) {
        std::memcpy(keys_[i].words.data(), raw_.data() + i * kEntryBytes<K>, 8 * K);
        std::memcpy(&counts_[i], raw_.data() + i * kEntryBytes<K> + 8 * K, 4);
    }
    at_ = 0;
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
