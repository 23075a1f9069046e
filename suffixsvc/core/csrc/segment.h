// Reads a sealed segment: an immutable file, mapped, searched in place (segment_format.h draws it).
//
// What drafting asks is what it asks of the hot index: the contexts of the current position that were seen
// here, longest first, and for each what followed it how often. find() fills a SegmentView with them:
//
//     query ... x b c                 rungs     len 3  "x b c"   1 entry
//                                               len 2  "b c"     2 entries     nested: each rung's entries
//                                               len 1  "c"       5 entries     are among the next one's
//
// A rung is one interval of entries; contexts of other lengths that end in the same places share it. Long
// intervals (hubs, everything seen at least hub_min times) were counted when the segment was made; short ones
// are scanned outward from the place found. To go on by a token is another find() with the view before as a
// hint: entries that the same token follows keep their order when it joins their contexts (the LF mapping of
// Ferragina and Manzini 2000), so a hub that knows where the first of them goes says where to look:
//
//     hub "c"  next  d e d d e         contexts "... c d":  the hub's target for d, then one entry for each
//                          ^ at                             d before `at`:  d d [d]
//
// Trust: none. The header is checked at open, every block of 64 KiB against its checksum when it is first
// looked at, every offset before it is followed. What fails marks the segment corrupt: from then on it
// answers nothing, and the engine builds it again from the log. A page that cannot be read while the file is
// mapped becomes zeros and marks the segment corrupt (map_guard.h). So what was checked may be zeros when it
// is read again: whatever leads to memory is read once, checked, and used as it was read.
//
// Threads: everything const may be called from any number of threads at once, without locks, while others
// forget(). No call of the query part allocates.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "drafted.h"
#include "holds.h"
#include "map_guard.h"
#include "segment_alphabet.h"
#include "segment_format.h"
#include "segment_texts.h"

namespace suffixsvc {

inline constexpr std::size_t kMostRungs = 12;
inline constexpr std::uint32_t kExactEntries = 256;  // longer intervals that are no hubs are sampled
inline constexpr std::uint32_t kSampledEntries = 64;
inline constexpr std::size_t kMostWidth = 8;  // strongest followers of a rung that gather() gives
inline constexpr std::size_t kMostCandidates = kMostRungs * kMostWidth;

// Contexts of one length (and of some shorter ones): entries [begin, end).
struct SegmentRung {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::uint32_t hub = kNoHub;
    std::uint32_t len = 0;  // tokens of the query that all entries share; the next rung's is smaller
};

// What a segment knows of one position: rungs, longest first. Plain data, valid as long as the segment.
struct SegmentView {
    std::uint32_t size = 0;
    std::uint32_t at = 0;  // where the whole context would stand among the entries
    std::array<SegmentRung, kMostRungs> rungs;

    std::span<const SegmentRung> all() const { return {rungs.data(), size}; }
};

// What followed the contexts of a view. Candidates are the strongest followers of any rung, each once, those
// of the longest rung first. Filled up to `size` candidates and the view's rungs; the rest is not
// initialised.
struct SegmentEvidence {
    std::size_t size = 0;
    std::array<Token, kMostCandidates> token;
    std::array<std::array<std::uint32_t, kMostRungs>, kMostCandidates> votes;  // [candidate][rung]
    std::array<std::uint32_t, kMostRungs> total;  // votes of all followers of a rung
    std::array<std::uint32_t, kMostRungs>
        newest;  // position of a rung's newest follower, as newest() finds it; 0: none
    // Candidates that are the strongest of a rung, strongest first, of equal ones the newer first.
    std::array<std::uint8_t, kMostRungs> strongest_size;
    std::array<std::array<std::uint8_t, kMostWidth>, kMostRungs> strongest;
};

struct SegmentNewest {
    Token token = -1;            // -1: none
    std::uint64_t age = 0;       // LSN of its output
    std::uint32_t position = 0;  // greater = newer, within a segment
};

// A text in an output.
struct SegmentOccurrence {
    std::uint64_t lsn = 0;
    std::uint32_t text = 0;
    auto operator<=>(const SegmentOccurrence&) const = default;
};

struct SegmentStats {
    std::uint64_t file_bytes = 0;
    std::uint64_t resident_bytes = 0;  // of memory beside the map
    std::uint64_t tokens = 0;          // counted, forgotten ones included
    std::uint64_t texts = 0;
    std::uint64_t occurrences = 0;
    std::uint64_t forgotten = 0;  // occurrences
    std::uint64_t alphabet = 0;
    std::uint64_t hubs = 0;
    std::uint64_t hub_min = 0;
    std::uint64_t first_lsn = 0;
    std::uint64_t last_lsn = 0;
    std::uint64_t unsettled = 0;  // forgotten texts that hubs still count
};

// Shared from within so that Python's references and the core's count as one, without the GIL.
class Segment : public std::enable_shared_from_this<Segment> {
  public:
    // nullptr and a fault (foreign, corrupt, io) where the file is not a whole segment of this version. Reads
    // the header, the alphabet and the table of texts; everything else on first touch.
    static std::unique_ptr<Segment> open(const std::string& path, FileFault& fault);
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    // ---- drafting --------------------------------------------------------------------------------
    // `context`: the tokens before the position, newest last; the last kSegmentContext of them count.
    // `orders`: the context lengths of interest, ascending, at least 1, at most kMostRungs - 1 of them.
    // Rungs: the longest context with a follower that is not forgotten, and of the shorter ones those that
    // cover an order.
    // `before`: what find() gave here for the context without its newest token, or nullptr; may be `view`
    // itself. It changes no answer, but says where to begin.
    void find(std::span<const Token> context, std::span<const int> orders, SegmentView& view,
              const SegmentView* before = nullptr) const;
    // The `width` (at most kMostWidth) strongest followers of each rung, with their votes in all of them. A
    // vote is an occurrence: an entry in an output. Exact for rungs of up to kExactEntries entries. Of hubs
    // the kHubFollowers strongest followers are known exactly; another one's votes are those it has in the
    // next longer rung, which are some of them. Other rungs (where hub_min was raised, and hubs before
    // settle()) are estimated from kSampledEntries evenly spaced entries, a stratified sample. A rung that
    // the segment does not have: undefined numbers, no crash.
    void gather(const SegmentView& view, std::size_t width, SegmentEvidence& out) const;
    // Votes of one token in each rung, by the same rules; out has room for view.size.
    void votes(const SegmentView& view, Token token, std::span<std::uint32_t> out) const;
    // Votes of all followers of a rung. 0: all forgotten, or corrupt.
    std::uint32_t total(const SegmentRung& rung) const;
    // The newest follower of a rung that is not forgotten. From samples where strongest() samples and, of a
    // hub, where its newest was forgotten and is not settled yet.
    SegmentNewest newest(const SegmentRung& rung) const;
    // Where the token follows a rung's contexts: the newest such position, of those that newest() looks at;
    // 0: none.
    std::uint32_t newest_of(const SegmentRung& rung, Token token) const;
    // The token at a position, where a text that is not forgotten has one; otherwise -1. So the position
    // after a follower's is what came after it, to the end of its text.
    Token token_at(std::uint32_t position) const;
    // How old the text at a position is: the newest LSN it was sealed with. 0: no such position.
    std::uint64_t age_at(std::uint32_t position) const {
        return position < header_.counts.text && header_.counts.texts > 0
                   ? values<std::uint64_t>(Column::text_age)[text_map_.at(position)]
                   : 0;
    }

    // ---- whom drafts were taken from ---------------------------------------------------------------
    // A draft was taken from the text at this position.
    void note_drafted(std::uint32_t position) const {
        if (position < header_.counts.text && header_.counts.texts > 0) drafted_.note(text_map_.at(position));
    }
    // The newest outputs, not forgotten, of the texts that were noted since the last call (drafted.h: of the
    // last ones, where there were many), each once, the one noted last at the end.
    std::vector<std::uint64_t> take_drafted() const;

    // ---- forgetting ------------------------------------------------------------------------------
    // From its return on no text of these outputs votes or is drafted from; readers at work meanwhile see it
    // before or after. LSNs that are not here, or forgotten already, are skipped. Returns how many outputs
    // were found. Hubs are sampled (slower, less exact) until settle() has taken what was forgotten out of
    // their counts.
    std::size_t forget(std::span<const std::uint64_t> lsns);
    // Corrects the hubs for up to so many forgotten texts, some microseconds a token; returns how many are
    // left.
    std::size_t settle(std::size_t texts);
    // Occurrences forgotten so far.
    std::uint64_t forgotten() const { return forgotten_.load(std::memory_order_acquire); }

    // ---- the rest --------------------------------------------------------------------------------
    bool corrupt() const { return corrupt_.load(std::memory_order_acquire); }
    SegmentStats stats() const;
    // Reads every byte; returns the first broken invariant, or an empty string.
    std::string check() const;
    // What is not forgotten, ascending.
    std::vector<SegmentOccurrence> occurrences() const;
    const std::string& path() const { return path_; }

    // ---- for merging and checking: raw columns, verified by touch() -------------------------------
    const SegmentHeader& header() const { return header_; }
    const SegmentCounts& counts() const { return header_.counts; }
    const std::uint8_t* column(Column c) const { return file_ + layout_[c].offset; }
    template <typename T>
    std::span<const T> values(Column c) const {
        return {reinterpret_cast<const T*>(column(c)), layout_[c].bytes / sizeof(T)};
    }
    const Alphabet& alphabet() const { return alphabet_; }
    const TextMap& text_map() const { return text_map_; }
    // Occurrences of a text that are not forgotten.
    std::uint32_t weight(std::uint32_t text) const { return weights_[text].load(std::memory_order_relaxed); }
    // Whether the blocks of these bytes agree with their checksums; looked at once each.
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
    // Whether all blocks agree with their checksums now, whatever was found before.
    bool verify_all() const;
    void mark_corrupt() const { corrupt_.store(true, std::memory_order_release); }

  private:
    enum : std::uint8_t { kBlockUnread, kBlockGood };
    template <std::uint32_t W>
    friend class SegmentSearch;

    Segment() = default;
    bool map(int fd, FileFault& fault);
    bool load_tables(FileFault& fault);
    bool verify(std::uint64_t block) const;
    template <typename F>
    auto read(F f) const;
    void take_from_hubs(std::uint32_t text);
    std::size_t unsettled();
    bool is_gone(std::size_t occurrence) const {
        return (gone_[occurrence / 64].load(std::memory_order_acquire) >> occurrence % 64 & 1) != 0;
    }

    std::string path_;
    SegmentHeader header_;
    SegmentLayout layout_;
    const std::uint8_t* file_ = nullptr;  // read-only, shared
    std::uint8_t* writable_ = nullptr;  // the hubs once more, copied on write: forgetting lowers their votes
    std::size_t writable_bytes_ = 0;
    SegmentHub* hubs_ = nullptr;  // in writable_; votes and totals by atomic_ref only
    MapGuard file_guard_, writable_guard_;
    Alphabet alphabet_;
    TextMap text_map_;
    mutable std::vector<std::atomic<std::uint8_t>> blocks_;
    std::vector<std::atomic<std::uint32_t>> weights_;  // by text
    mutable std::atomic<bool> corrupt_{false};
    std::atomic<bool> plain_{true};                    // every weight is 1: no need to look
    std::atomic<bool> stale_{false};                   // hubs count what is forgotten
    std::vector<std::atomic<std::uint64_t>> gone_;     // a bit for each occurrence
    mutable HeldMutex<LockKind::segment> forgetting_;  // guards what follows; held for a moment
    std::vector<std::uint32_t> unsettled_;
    std::mutex settling_;  // one settles at a time; nobody who forgets or drafts waits for it
    std::atomic<std::uint64_t> forgotten_{0}, left_{0};
    mutable Drafted drafted_;  // texts
};

}  // namespace suffixsvc
