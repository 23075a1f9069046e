// Reader of a sealed segment: an immutable file, memory-mapped and searched in place
// (format: segment/format/segment_format.h).
//
// It answers the same queries as the hot index: the contexts of a position that occur here, longest first,
// and for each its followers with their counts. find() returns them as a SegmentView:
//
//   query ... x b c                 levels    len 3  "x b c"   1 entry
//                                             len 2  "b c"     2 entries     nested: the entries of each
//                                             len 1  "c"       5 entries     are among those of the next
//
// A level is one interval of entries; contexts of other lengths with the same end positions share it. Long
// intervals (hubs: every context seen at least hub_min times) were counted when the segment was built; short
// ones are scanned outward from the query's position among the entries. To extend a context by a token is
// another find() with the previous view as a hint: entries with the same follower keep their order when it
// joins their contexts (the LF mapping of Ferragina and Manzini 2000), so the target that a hub stores for
// the first of them is where the search begins:
//
//   hub "c"  next  d e d d e         contexts "... c d":  the hub's target for d, then one entry for each
//                        ^ at                             d before `at`:  d d [d]
//
// Validation: the file is not trusted. The header is checked at open, every block of 64 KiB against its
// checksum when it is first read, every offset before it is used. A failure marks the segment corrupt: from
// then on its results are empty, and the engine builds it again from the log. A page that cannot be read
// while the file is mapped becomes zeros and marks the segment corrupt (base/files/map_guard.h). Validated
// data may therefore be zeros when it is read again: every value that leads to memory is read once, checked,
// and used as it was read.
//
// Threads: all const functions may be called concurrently, without locks, and while another thread calls
// forget(). The query functions do not allocate.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/cache/recently_used.h"
#include "base/files/file.h"
#include "base/files/map_guard.h"
#include "base/sync/instrumented_mutex.h"
#include "segment/format/segment_alphabet.h"
#include "segment/format/segment_texts.h"

namespace suffixsvc {

inline constexpr std::size_t kMaxLevels = 12;
inline constexpr std::uint32_t kExactEntries = 256;  // longer intervals without a hub are sampled
inline constexpr std::uint32_t kSampledEntries = 64;
inline constexpr std::size_t kMaxWidth = 8;  // maximum followers of a level that gather() returns
inline constexpr std::size_t kMaxCandidates = kMaxLevels * kMaxWidth;

// Contexts of one length (and of some shorter lengths): entries [begin, end).
struct SegmentLevel {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::uint32_t hub = kNoHub;
    std::uint32_t len = 0;  // tokens of the query that all entries share; less in each next level
};

// The levels of one position, longest first. Plain data, valid as long as the segment.
struct SegmentView {
    std::uint32_t size = 0;
    std::uint32_t at = 0;  // position of the whole context in the order of entries
    std::array<SegmentLevel, kMaxLevels> levels;

    std::span<const SegmentLevel> all() const { return {levels.data(), size}; }
};

// The followers of the contexts of a view. Candidates are the strongest followers of any level, each once,
// those of the longest level first. Initialised up to `size` candidates and the view's levels.
struct SegmentEvidence {
    std::size_t size = 0;
    std::array<Token, kMaxCandidates> token;
    std::array<std::array<std::uint32_t, kMaxLevels>, kMaxCandidates> votes;  // [candidate][level]
    std::array<std::uint32_t, kMaxLevels> total;  // votes of all followers of a level
    // Position of a level's newest follower that is not forgotten (the greatest); 0: none. Sampled where
    // gather() samples and, for a hub, if its newest follower was forgotten and the hub was not corrected
    // yet.
    std::array<std::uint32_t, kMaxLevels> newest;
    // The strongest candidates of a level, strongest first, the newer first among equals.
    std::array<std::uint8_t, kMaxLevels> strongest_size;
    std::array<std::array<std::uint8_t, kMaxWidth>, kMaxLevels> strongest;
};

struct SegmentStats {
    std::uint64_t file_bytes = 0;
    std::uint64_t resident_bytes = 0;  // memory in addition to the map
    std::uint64_t tokens = 0;          // counted tokens, forgotten ones included
    std::uint64_t texts = 0;
    std::uint64_t occurrences = 0;
    std::uint64_t forgotten = 0;  // forgotten occurrences
    std::uint64_t alphabet = 0;
    std::uint64_t hub_min = 0;
    std::uint64_t first_lsn = 0;
    std::uint64_t last_lsn = 0;
    std::uint64_t uncorrected = 0;  // forgotten texts that are still in the counts of hubs
};

// Intrusive ownership: Python's references and the core's use one count, without the GIL.
class Segment : public std::enable_shared_from_this<Segment> {
  public:
    // Opens a segment. Throws FileFault (foreign, corrupt, io) if the file is not a whole segment of this
    // version. Reads the header, the alphabet and the table of texts; everything else on first access.
    static std::shared_ptr<Segment> open(const FilePath& path);
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    // ---- drafting --------------------------------------------------------------------------------
    // Finds the levels of a position. `context`: the tokens before the position, newest last; the last
    // kSegmentContext of them count. `orders`: the context lengths of interest, ascending, at least 1, at
    // most kMaxLevels - 1 of them. Levels: the longest context with a follower that is not forgotten, and of
    // the shorter ones those that cover an order. `before`: the result of find() for the context without its
    // newest token, or nullptr; may be `view` itself. A hint where to begin, without influence on the result.
    void find(std::span<const Token> context, std::span<const int> orders, SegmentView& view,
              const SegmentView* before = nullptr) const;
    // Gathers the `width` (at most kMaxWidth) strongest followers of each level, with their votes in all
    // levels. An entry has a vote for every output that has its text. Exact for levels of up to kExactEntries
    // entries. For hubs, the kHubFollowers strongest followers are exact; any other has the votes of the next
    // longer level, which are a lower bound. Other levels (if hub_min was raised, and hubs before
    // correct_hubs()) are estimated from kSampledEntries evenly spaced entries, a stratified sample. For a
    // level that the segment does not have, the numbers are undefined.
    void gather(const SegmentView& view, std::size_t width, SegmentEvidence& out) const;
    // Votes of one token in each level, by the same rules; `out` has at least view.size elements.
    void votes(const SegmentView& view, Token token, std::span<std::uint32_t> out) const;
    // Votes of all followers of a level. 0: all forgotten, or corrupt.
    std::uint32_t total(const SegmentLevel& level) const;
    // The newest position where the token follows a level's contexts, of those that gather() reads; 0: none.
    std::uint32_t newest_of(const SegmentLevel& level, Token token) const;
    // The token at a position of a text that is not forgotten; otherwise -1. The position after a follower's
    // is therefore its continuation, to the end of the text.
    Token token_at(std::uint32_t position) const;
    // The newest LSN that the text at a position was sealed with. 0: no such position.
    std::uint64_t age_at(std::uint32_t position) const {
        return position < header_.counts.text && header_.counts.texts > 0
                   ? values<std::uint64_t>(Column::text_age)[text_map_.at(position)]
                   : 0;
    }

    // ---- recency of use ------------------------------------------------------------------------------
    // Records that a draft was taken from the text at this position.
    void record_use(std::uint32_t position) const {
        if (position < header_.counts.text && header_.counts.texts > 0)
            recently_used_.record(text_map_.at(position));
    }
    // The newest outputs, not forgotten, of the texts that were recorded since the last call
    // (base/cache/recently_used.h: not all if there were many), each once, in the order of their
    // last use. A text credits its newest output only: the others then age and are evicted first, which
    // loses nothing of the text but their votes.
    std::vector<std::uint64_t> take_recently_used() const;

    // ---- forgetting ------------------------------------------------------------------------------
    // After its return no text of these outputs votes or is drafted from; concurrent readers see it before or
    // after. LSNs that are unknown or forgotten already are skipped. Returns the number of outputs found.
    // Hubs are sampled (slower, less exact) until correct_hubs() has subtracted the forgotten texts.
    std::size_t forget(std::span<const std::uint64_t> lsns);
    // Subtracts up to `texts` forgotten texts from the counts of hubs, some microseconds per token; returns
    // how many are left.
    std::size_t correct_hubs(std::size_t texts);
    // Occurrences forgotten so far.
    std::uint64_t forgotten() const { return forgotten_.load(std::memory_order_acquire); }

    // ---- state and verification ----------------------------------------------------------------------
    bool corrupt() const { return corrupt_.load(std::memory_order_acquire); }
    SegmentStats stats() const;
    // Reads every byte; returns the first violated invariant, or an empty string.
    std::string check() const;
    // Throws FileFault (corrupt) if check() finds a violation.
    void require_sound() const;
    // Occurrences that are not forgotten, ascending.
    std::vector<SegmentOccurrence> occurrences() const;
    const std::string& path() const { return path_; }

    // ---- for merging and checking: raw columns, verified by touch() -----------------------------------
    const SegmentHeader& header() const { return header_; }
    const SegmentCounts& counts() const { return header_.counts; }
    const SegmentLayout& layout() const { return layout_; }
    const std::uint8_t* file() const { return file_; }
    const std::uint8_t* column(Column c) const { return file_ + layout_[c].offset; }
    template <typename T>
    std::span<const T> values(Column c) const {
        return {reinterpret_cast<const T*>(column(c)), layout_[c].bytes / sizeof(T)};
    }
    template <typename T>
    std::vector<T> copied(Column c) const {
        const std::span<const T> all = values<T>(c);
        return {all.begin(), all.end()};
    }
    const Alphabet& alphabet() const { return alphabet_; }
    const TextMap& text_map() const { return text_map_; }
    // Occurrences of a text that are not forgotten.
    std::uint32_t weight(std::uint32_t text) const { return weights_[text].load(std::memory_order_relaxed); }
    // Verifies the checksums of the blocks of these bytes, once per block.
    bool touch_all() const {
        return touch(file_ + sizeof header_, layout_[Column::sums].offset - sizeof header_);
    }
    bool touch(const void* data, std::size_t bytes) const {
        if (bytes == 0) return true;
        const auto at =
            static_cast<std::uint64_t>(static_cast<const std::uint8_t*>(data) - file_) - sizeof header_;
        const std::uint64_t last = (at + bytes - 1) / kSegmentBlock;
        if (last >= blocks_.size()) return false;
        for (std::uint64_t b = at / kSegmentBlock; b <= last; ++b)
            if (blocks_[b].load(std::memory_order_relaxed) != kBlockGood && !verify(b)) return false;
        return true;
    }
    // Verifies the checksums of all blocks again.
    bool verify_all() const;
    void mark_corrupt() const { corrupt_.store(true, std::memory_order_release); }

  private:
    enum : std::uint8_t { kBlockUnread, kBlockGood };
    template <std::uint32_t W>
    friend class SegmentSearch;

    Segment() = default;
    void map(const File& file);
    void load_tables();
    FileFault fault(FileFault::Kind kind, const std::string& what, std::string expected = "",
                    std::string got = "") const;
    bool verify(std::uint64_t block) const;
    template <typename F>
    auto read(F f) const;
    void subtract_from_hubs(std::uint32_t text);
    bool is_forgotten(std::size_t occurrence) const {
        return (forgotten_bits_[occurrence / 64].load(std::memory_order_acquire) >> occurrence % 64 & 1) != 0;
    }

    std::string path_;
    SegmentHeader header_;
    SegmentLayout layout_;
    const std::uint8_t* file_ = nullptr;  // read-only, shared
    std::uint8_t* writable_ = nullptr;    // a private map of the hubs: forgetting lowers their votes
    std::size_t writable_bytes_ = 0;
    SegmentHub* hubs_ = nullptr;  // in writable_; votes and totals are accessed by atomic_ref
    MapGuard file_guard_, writable_guard_;
    Alphabet alphabet_;
    TextMap text_map_;
    mutable std::vector<std::atomic<std::uint8_t>> blocks_;
    std::vector<std::atomic<std::uint32_t>> weights_;  // by text
    mutable std::atomic<bool> corrupt_{false};
    std::atomic<bool> unit_weights_{true};  // every weight is 1, so that weights need not be read
    std::atomic<bool> hubs_stale_{false};   // the counts of hubs include forgotten texts
    std::vector<std::atomic<std::uint64_t>> forgotten_bits_;   // a bit for each occurrence
    mutable InstrumentedMutex<LockKind::segment> forgetting_;  // guards uncorrected_; held briefly
    std::vector<std::uint32_t> uncorrected_;
    std::mutex correcting_;  // serialises correct_hubs(); neither forgetting nor drafting waits for it
    std::atomic<std::uint64_t> forgotten_{0}, uncorrected_count_{0};
    mutable RecentlyUsed recently_used_;  // recently used texts
};

}  // namespace suffixsvc
