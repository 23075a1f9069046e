// Epoch-based reclamation (Fraser 2004): readers access a structure without locks while a writer changes it.
//
//   writer   ──unlink x──┬────────────── x is retired ──────────────┬── x is reused
//   reader 1  ───[ may have seen x ]                                │
//   reader 2       ───[ may have seen x        ]  the last reader ──┘
//   reader 3                ───[ began later: cannot reach x ]
//
// A reader holds an EpochGuard while it reads. A writer that unlinks an object puts it into a RetireList; the
// object is reused after every reader that was active at that time has finished. Writers advance a global
// epoch; a guard stores the current epoch in its reader slot. No thread waits for another: a long-running
// reader only delays the reuse of memory.
//
// Correctness. The tag of a retire list is the epoch that ended after its contents were unlinked. Accesses to
// slots and to the epoch are sequentially consistent. A reader reads the epoch again after it stored it in
// its slot, so either the writer sees the slot, or the reader sees an epoch later than the tag, and with it
// that the contents are unlinked. A guard that ends stores to its slot with release order; the writer reads
// the slot with acquire order before it reuses memory.
//
// Fields that are read in place are AtomicFields: loads acquire, stores release. A reader that finds a
// reference therefore sees everything that was written before the reference.
//
// Threads: EpochGuard may be used by any thread; a RetireList belongs to its writer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace suffixsvc {

// In sanitizer builds a writer sometimes yields between two stores.
#ifdef SUFFIXSVC_JITTER
void jitter();
#else
inline void jitter() {}
#endif

// A value that one writer changes while other threads read it.
template <typename T>
class AtomicField {
  public:
    AtomicField() = default;
    AtomicField(T value) : value_(value) {}
    AtomicField(const AtomicField& other) : value_(other.load()) {}
    AtomicField& operator=(const AtomicField& other) { return *this = other.load(); }
    AtomicField& operator=(T value) {
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

// While a guard is alive, no object that its thread can reach in any index is reused. Cost: two stores to a
// cache line that only this thread writes.
class EpochGuard {
  public:
    EpochGuard();
    ~EpochGuard();
    EpochGuard(const EpochGuard&) = delete;
    EpochGuard& operator=(const EpochGuard&) = delete;

  private:
    std::atomic<std::uint64_t>* slot_;
};

namespace epoch {
// Ends the current epoch and returns it. A reader that can still reach what was unlinked before began in this
// epoch or earlier.
std::uint64_t advance();
// Whether no reader is active that began in that epoch or earlier.
bool quiescent(std::uint64_t epoch);
}  // namespace epoch

// Objects that were unlinked and may still be read, until they may be reused.
template <typename Object>
class RetireList {
  public:
    void put(Object object, std::size_t bytes = 0) {
        fresh_.push_back(object);
        fresh_bytes_ += bytes;
    }
    // Whether enough was retired to make a scan of the reader slots worthwhile.
    bool due() const { return fresh_.size() >= due_ || fresh_bytes_ >= kScanBytes; }
    bool empty() const { return fresh_.empty() && waiting_.empty(); }
    // Calls free(object) for objects that no reader can reach (all of them if `readers` is false), at most
    // `limit` times. Returns whether reclaimable objects are left.
    template <typename F>
    bool collect(F&& free, bool readers, std::size_t limit) {
        for (;;) {
            if (waiting_.empty()) {
                if (fresh_.empty()) break;
                waiting_.swap(fresh_);
                fresh_bytes_ = 0;
                if (readers) epoch_ = epoch::advance();
                quiescent_ = !readers;
            }
            quiescent_ = quiescent_ || epoch::quiescent(epoch_);
            if (!quiescent_ || limit == 0) break;
            for (; released_ < waiting_.size() && limit > 0; --limit) free(waiting_[released_++]);
            if (released_ == waiting_.size()) {
                waiting_.clear();
                released_ = 0;
            }
        }
        // A long-running reader must not cause a scan for every token.
        due_ = fresh_.size() + kScanObjects;
        if (fresh_bytes_ >= kScanBytes) fresh_bytes_ = 0;
        return quiescent_ && !waiting_.empty();
    }
    void shrink_to_fit() {
        fresh_.shrink_to_fit();
        waiting_.shrink_to_fit();
    }
    std::size_t bytes() const { return (fresh_.capacity() + waiting_.capacity()) * sizeof(Object); }

  private:
    static constexpr std::size_t kScanObjects = 128;
    static constexpr std::size_t kScanBytes = 256 << 10;

    std::vector<Object> fresh_;  // unlinked since the last epoch ended
    // unlinked before epoch_ ended; the first released_ of them are freed already
    std::vector<Object> waiting_;
    std::size_t released_ = 0;
    std::uint64_t epoch_ = 0;
    bool quiescent_ = false;  // no reader is active that began in epoch_ or earlier
    std::size_t due_ = kScanObjects;
    std::size_t fresh_bytes_ = 0;
};

}  // namespace suffixsvc
