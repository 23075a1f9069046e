// How readers look at what a writer is changing, without a lock.
//
//   writer   ──unlink x──┬──────────── x is in limbo ────────────┬── x is used again
//   reader 1  ───[ may have seen x ]                             │
//   reader 2       ───[ may have seen x        ]  the last one ──┘
//   reader 3                ───[ came later: cannot find x ]
//
// A reader announces itself for as long as it looks (Reading). A writer that takes something out of the
// structure puts it into a Limbo; it is used again when every reader that was there at that time has gone.
// This is epoch-based reclamation (Fraser 2004): an era, counted up by writers; a reader writes the era
// into a slot. Nobody ever waits for anybody: a reader that stays long only makes memory return later.
//
// Why it is safe. A limbo's tag is the era that ended after its contents were unlinked. Slots, the era and
// the looks at them are sequentially consistent. A reader re-reads the era after it wrote its slot, so either
// the writer sees the slot, or the reader sees an era later than the tag and with it that the contents are
// unlinked. A reader that leaves releases its slot, which the writer acquires before it uses memory again.
//
// What is read in place is a Word: loads acquire, stores release. So who finds a name sees what was written
// before the name was.
//
// Threads: Reading is for any thread; a Limbo belongs to its writer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace suffixsvc {

// In builds for the sanitizers, a writer is now and then interrupted between two words.
#ifdef SUFFIXSVC_JITTER
void jitter();
#else
inline void jitter() {}
#endif

// A value that one writer changes while readers look at it.
template <typename T>
class Word {
  public:
    Word() = default;
    Word(T value) : value_(value) {}
    Word(const Word& other) : value_(other.load()) {}
    Word& operator=(const Word& other) { return *this = other.load(); }
    Word& operator=(T value) {
        value_.store(value, std::memory_order_release);
        jitter();
        return *this;
    }
    operator T() const { return load(); }
    T load() const { return value_.load(std::memory_order_acquire); }
    void operator+=(T by) { *this = static_cast<T>(load() + by); }
    void operator-=(T by) { *this = static_cast<T>(load() - by); }
    void operator^=(T by) { *this = static_cast<T>(load() ^ by); }

  private:
    std::atomic<T> value_;
    static_assert(std::atomic<T>::is_always_lock_free && sizeof(std::atomic<T>) == sizeof(T));
};

// While one lives, nothing that this thread can find in any index is used for something else. Cheap: two
// writes to a cache line that no other thread wants.
class Reading {
  public:
    Reading();
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

  private:
    std::atomic<std::uint64_t>* slot_;
};

namespace grace {
// Ends an era; whoever can still see what was unlinked before came in it or earlier.
std::uint64_t end_era();
// Whether nobody is left who came in that era or earlier.
bool over(std::uint64_t era);
}  // namespace grace

// Things that were unlinked and may still be looked at, until they may be used again.
template <typename Thing>
class Limbo {
  public:
    void put(Thing thing, std::size_t bytes = 0) {
        fresh_.push_back(thing);
        fresh_bytes_ += bytes;
    }
    // Whether it is worth a look at the readers.
    bool due() const { return fresh_.size() >= due_ || fresh_bytes_ >= kManyBytes; }
    bool empty() const { return fresh_.empty() && waiting_.empty(); }
    // Calls free(thing) for what nobody can look at any more (without readers that is everything), at most
    // `most` times. True where that left some of it.
    template <typename F>
    bool collect(F&& free, bool readers, std::size_t most) {
        for (;;) {
            if (waiting_.empty()) {
                if (fresh_.empty()) break;
                waiting_.swap(fresh_);
                fresh_bytes_ = 0;
                if (readers) era_ = grace::end_era();
                over_ = !readers;
            }
            over_ = over_ || grace::over(era_);
            if (!over_ || most == 0) break;
            for (; released_ < waiting_.size() && most > 0; --most) free(waiting_[released_++]);
            if (released_ == waiting_.size()) {
                waiting_.clear();
                released_ = 0;
            }
        }
        // A reader that stays is not asked about for every token.
        due_ = fresh_.size() + kMany;
        if (fresh_bytes_ >= kManyBytes) fresh_bytes_ = 0;
        return over_ && !waiting_.empty();
    }
    void shrink_to_fit() {
        fresh_.shrink_to_fit();
        waiting_.shrink_to_fit();
    }
    std::size_t bytes() const { return (fresh_.capacity() + waiting_.capacity()) * sizeof(Thing); }

  private:
    static constexpr std::size_t kMany = 128;
    static constexpr std::size_t kManyBytes = 256 << 10;

    std::vector<Thing> fresh_;    // unlinked since the last era was ended
    std::vector<Thing> waiting_;  // unlinked when era_ ended, ...
    std::size_t released_ = 0;    // ... the first ones free already
    std::uint64_t era_ = 0;
    bool over_ = false;  // nobody is left who came in that era or earlier
    std::size_t due_ = kMany;
    std::size_t fresh_bytes_ = 0;
};

}  // namespace suffixsvc
