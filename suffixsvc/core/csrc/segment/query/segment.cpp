#include "segment/query/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "base/files/crc32c.h"

namespace suffixsvc {

namespace {

constexpr std::uint64_t kNoLsn = 0xFFFFFFFFFFFFFFFFull;  // no LSN: all of its outputs are forgotten

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

// The error of a header with a correct checksum, or an empty string.
std::string header_error(const SegmentHeader& h) {
    const SegmentCounts& c = h.counts;
    if (h.max_context != kSegmentContext) return "max_context must be 64";
    if (h.block_bytes != kSegmentBlock) return "block_bytes must be 65536";
    if (c.code_bytes != code_bytes_for(c.alphabet)) return "code_bytes must fit the alphabet";
    if (c.text > kSegmentMaxText || c.text == 0) return "positions must be in 1 .. 0xFFFF0000";
    if (c.alphabet > c.text || c.texts > c.text / 2 || c.entries > c.text - 1 - c.texts ||
        c.occurrences < c.texts || c.hubs > c.entries || c.hub_min < 2)
        return "counts are inconsistent";
    for (std::uint8_t byte : h.zero)
        if (byte) return "reserved bytes must be 0";
    return "";
}

}  // namespace

FileFault Segment::fault(FileFault::Kind kind, const std::string& what, std::string expected,
                         std::string got) const {
    return {kind, "segment file " + path_ + ": " + what, std::move(expected), std::move(got)};
}

std::shared_ptr<Segment> Segment::open(const FilePath& path) {
    std::shared_ptr<Segment> segment(new Segment);
    segment->path_ = path.text;
    File file("the segment file " + path.text);
    // O_NONBLOCK: opening a named pipe would block.
    if (!file.open(path, O_RDONLY | O_NONBLOCK))
        throw segment->fault(FileFault::Kind::io, "cannot be opened", "", std::strerror(errno));
    segment->map(file);
    segment->load_tables();
    return segment;
}

Segment::~Segment() {
    file_guard_.end();
    writable_guard_.end();
    if (file_) ::munmap(const_cast<std::uint8_t*>(file_), header_.file_bytes);
    if (writable_) ::munmap(writable_, writable_bytes_);
}

void Segment::map(const File& file) {
    using Kind = FileFault::Kind;
    struct stat info;
    if (::fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode))
        throw fault(Kind::foreign, "not a regular file");
    const auto size = static_cast<std::uint64_t>(info.st_size);
    const std::size_t have = file.read(0, &header_, sizeof header_);
    if (have < 12 || header_.magic != kSegmentMagic) {
        if (have > 0 && have < 12 &&
            std::memcmp(&header_, kSegmentMagic.data(), std::min<std::size_t>(have, 8)) == 0)
            throw fault(Kind::corrupt, "truncated", "a header of 512 bytes", std::to_string(have) + " bytes");
        throw fault(Kind::foreign, "not a segment", "SXSEG at its start", "something else");
    }
    const bool sound = have == sizeof header_ && header_.crc == crc32c(&header_, sizeof header_ - 4);
    // A newer version may have a different header; only the version number is read. A number of 1024 or more
    // is damage: each change of the format adds 1 to it, and a damaged file must be deleted, not kept.
    if (sound ? header_.version != kSegmentVersion
              : header_.version > kSegmentVersion && header_.version < 1024)
        throw fault(Kind::foreign,
                    sound ? "unsupported version of the format"
                          : "unsupported version of the format, or a damaged header",
                    std::to_string(kSegmentVersion), std::to_string(header_.version));
    if (!sound) throw fault(Kind::corrupt, "the header's checksum does not match");
    if (const std::string what = header_error(header_); !what.empty()) throw fault(Kind::corrupt, what);
    layout_ = layout_of(header_.counts);
    if (layout_.file_bytes != size || header_.file_bytes != size)
        throw fault(Kind::corrupt, "the length does not match the header",
                    std::to_string(layout_.file_bytes) + " bytes", std::to_string(size) + " bytes");
    const auto map_pages = [&](std::uint64_t at, std::uint64_t bytes, int access, int flags) {
        void* p = ::mmap(nullptr, bytes, access, flags, file.fd(), static_cast<off_t>(at));
        if (p == MAP_FAILED) throw fault(Kind::io, "cannot be mapped", "", std::strerror(errno));
        return static_cast<std::uint8_t*>(p);
    };
    file_ = map_pages(0, size, PROT_READ, MAP_SHARED);
    file_guard_.begin(file_, size, false, corrupt_);
    ::madvise(const_cast<std::uint8_t*>(file_), size, MADV_RANDOM);
    if (header_.counts.hubs > 0) {
        const SegmentLayout::Extent& hubs = layout_[Column::hubs];
        const std::uint64_t at = hubs.offset / page_bytes() * page_bytes();
        writable_bytes_ = hubs.offset + hubs.bytes - at;
        writable_ = map_pages(at, writable_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE);
        writable_guard_.begin(writable_, writable_bytes_, true, corrupt_);
        hubs_ = reinterpret_cast<SegmentHub*>(writable_ + (hubs.offset - at));
    }
    const SegmentLayout::Extent& sums = layout_[Column::sums];
    if (crc32c(file_ + sums.offset, sums.bytes) != header_.sums_crc)
        throw fault(Kind::corrupt, "the checksum table's checksum does not match");
    blocks_ = std::vector<std::atomic<std::uint8_t>>(layout_.blocks);
}

bool Segment::verify(std::uint64_t block) const {
    const std::uint64_t at = sizeof header_ + block * kSegmentBlock;
    const std::uint64_t end = std::min(at + kSegmentBlock, layout_[Column::sums].offset);
    // The map is advised for random access; these bytes are needed all at once.
    const std::uint64_t first = at / page_bytes() * page_bytes();
    ::madvise(const_cast<std::uint8_t*>(file_) + first, end - first, MADV_WILLNEED);
    if (crc32c(file_ + at, end - at) != values<std::uint32_t>(Column::sums)[block]) {
        mark_corrupt();
        return false;
    }
    blocks_[block].store(kBlockGood, std::memory_order_relaxed);
    return true;
}

bool Segment::verify_all() const {
    for (std::uint64_t block = 0; block < layout_.blocks; ++block)
        if (!verify(block)) return false;
    return !corrupt();
}

void Segment::load_tables() {
    const SegmentCounts& c = header_.counts;
    const auto require = [&](bool holds, const char* otherwise) {
        if (!holds) throw fault(FileFault::Kind::corrupt, otherwise);
    };
    for (Column each : {Column::alphabet, Column::buckets, Column::text_start, Column::text_context,
                        Column::text_age, Column::occ_lsn, Column::occ_text, Column::hub_index})
        require(touch(column(each), layout_[each].bytes), "a block's checksum does not match");
    const auto ids = values<Token>(Column::alphabet);
    for (std::size_t i = 0; i < ids.size(); ++i)
        require(ids[i] >= 0 && (i == 0 || ids[i] > ids[i - 1]), "the alphabet is not ascending");
    const auto buckets = values<std::uint32_t>(Column::buckets);
    require(buckets.front() == 0 && buckets.back() == c.entries && std::ranges::is_sorted(buckets),
            "the buckets do not cover the entries");
    const auto starts = values<std::uint32_t>(Column::text_start);
    const auto contexts = values<std::uint8_t>(Column::text_context);
    require(starts.front() == 1 && starts.back() == c.text, "the texts do not cover the text column");
    std::uint64_t entries = 0;
    for (std::uint32_t t = 0; t < c.texts; ++t) {
        require(starts[t + 1] <= c.text && starts[t + 1] >= starts[t] + 2u + contexts[t],
                "a text has no counted token");
        entries += starts[t + 1] - starts[t] - 1 - contexts[t];
    }
    require(entries == c.entries, "the counted tokens of the texts do not match the entries");
    const auto lsns = values<std::uint64_t>(Column::occ_lsn);
    const auto texts = values<std::uint32_t>(Column::occ_text);
    forgotten_bits_ = std::vector<std::atomic<std::uint64_t>>((c.occurrences + 63) / 64);
    weights_ = std::vector<std::atomic<std::uint32_t>>(c.texts);
    for (std::uint32_t i = 0; i < c.occurrences; ++i) {
        require(texts[i] < c.texts && (i == 0 || lsns[i] >= lsns[i - 1]), "the occurrences are out of order");
        weights_[texts[i]].fetch_add(1, std::memory_order_relaxed);
    }
    unit_weights_.store(
        std::all_of(weights_.begin(), weights_.end(), [](const auto& w) { return w.load() == 1; }),
        std::memory_order_relaxed);
    const auto hub_index = values<std::uint32_t>(Column::hub_index);
    require(std::ranges::is_sorted(hub_index) && hub_index.back() <= c.hubs,
            "the index of hubs is not ascending");
    alphabet_ = Alphabet(ids);
    text_map_ = TextMap(starts, c.text);
    // Pages may have been lost during these reads.
    require(!corrupt(), "a page cannot be read");
}

std::size_t Segment::forget(std::span<const std::uint64_t> lsns) {
    const auto known = values<std::uint64_t>(Column::occ_lsn);
    const auto texts = values<std::uint32_t>(Column::occ_text);
    std::size_t found = 0;
    for (const std::uint64_t lsn : lsns) {
        bool here = false;
        for (auto at = std::lower_bound(known.begin(), known.end(), lsn); at != known.end() && *at == lsn;
             ++at) {
            const auto i = static_cast<std::size_t>(at - known.begin());
            const std::uint64_t bit = std::uint64_t{1} << i % 64;
            if ((forgotten_bits_[i / 64].fetch_or(bit) & bit) != 0) continue;
            here = true;
            const std::uint32_t text = texts[i];
            const std::scoped_lock lock(forgetting_);
            forgetting_.add_work(1);
            // Readers that see the new weight must not skip the weights.
            unit_weights_.store(false, std::memory_order_seq_cst);
            if (header_.counts.hubs > 0) {
                hubs_stale_.store(true, std::memory_order_seq_cst);
                uncorrected_.push_back(text);
                uncorrected_count_.store(uncorrected_.size(), std::memory_order_relaxed);
            }
            weights_[text].fetch_sub(1, std::memory_order_seq_cst);
            forgotten_.fetch_add(1, std::memory_order_release);
        }
        found += here;
    }
    return found;
}

std::size_t Segment::correct_hubs(std::size_t texts) {
    const std::scoped_lock one(correcting_);
    for (; texts > 0 && !corrupt(); --texts) {
        std::uint32_t text = 0;
        {
            const std::scoped_lock lock(forgetting_);
            if (uncorrected_.empty()) break;
            text = uncorrected_.back();
            uncorrected_.pop_back();
            uncorrected_count_.store(uncorrected_.size(), std::memory_order_relaxed);
        }
        subtract_from_hubs(text);
    }
    if (corrupt()) return 0;  // a corrupt segment is built again, without the forgotten outputs
    const std::scoped_lock lock(forgetting_);
    if (uncorrected_.empty()) hubs_stale_.store(false, std::memory_order_seq_cst);  // exact again
    return uncorrected_.size();
}

std::vector<SegmentOccurrence> Segment::occurrences() const {
    const auto lsns = values<std::uint64_t>(Column::occ_lsn);
    const auto texts = values<std::uint32_t>(Column::occ_text);
    std::vector<SegmentOccurrence> out;
    for (std::size_t i = 0; i < lsns.size(); ++i)
        if (!is_forgotten(i)) out.push_back({lsns[i], texts[i]});
    return out;
}

std::vector<std::uint64_t> Segment::take_recently_used() const {
    const std::vector<std::uint32_t> drafted = recently_used_.take();
    if (drafted.empty()) return {};
    // Not the age of a text: after a merge that may be the LSN of an output that was left out.
    const auto lsns = values<std::uint64_t>(Column::occ_lsn);
    const auto texts = values<std::uint32_t>(Column::occ_text);
    std::vector<std::uint64_t> newest(weights_.size(), kNoLsn);
    for (std::size_t i = 0; i < lsns.size(); ++i)
        if (!is_forgotten(i)) newest[texts[i]] = lsns[i];
    std::vector<std::uint64_t> out;
    for (std::uint32_t text : drafted)
        if (newest[text] != kNoLsn) out.push_back(newest[text]);
    // Several texts may belong to one output: its last use counts.
    std::unordered_set<std::uint64_t> seen;
    std::reverse(out.begin(), out.end());
    std::erase_if(out, [&](std::uint64_t lsn) { return !seen.insert(lsn).second; });
    std::reverse(out.begin(), out.end());
    return out;
}

SegmentStats Segment::stats() const {
    const SegmentCounts& c = header_.counts;
    return {header_.file_bytes,
            alphabet_.bytes() + text_map_.bytes() + blocks_.size() + weights_.size() * 4 +
                forgotten_bits_.size() * 8 + sizeof *this,
            c.entries,
            c.texts,
            c.occurrences,
            forgotten_.load(std::memory_order_relaxed),
            c.alphabet,
            c.hub_min,
            header_.first_lsn,
            header_.last_lsn,
            uncorrected_count_.load(std::memory_order_relaxed)};
}

}  // namespace suffixsvc
