// How long, and for how much work, the locks that decode steps wait for are held at most.
//
// Such a lock is held for a bounded amount of work; long jobs take it in turns. Work is counted where it can
// be large (nodes touched), so that a test can bound it on any machine; the time of a hold is for benchmarks:
// wall time, or, where other programs should not count, the holder's processor time. Measuring costs two
// reads of the processor's counter a hold.
//
// Threads: any.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <chrono>
#endif

namespace suffixsvc {

enum class LockKind : std::uint8_t {
    index,     // writers of a namespace's index
    segment,   // what is forgotten in a sealed segment
    segments,  // a namespace's list of segments
    drafted,   // which texts drafts were taken from
    learner,   // the first learning of a namespace
    desk,      // sessions whose steps are answered natively
};
inline constexpr std::array<const char*, 6> kLockNames{"index",   "segment", "segments",
                                                       "drafted", "learner", "desk"};

namespace holds {

// Whether holds are measured in processor time; a system call for each look at it.
inline std::atomic<bool> processor_time{false};
std::uint64_t processor_ticks();

inline std::uint64_t ticks() {
    if (processor_time.load(std::memory_order_relaxed)) [[unlikely]]
        return processor_ticks();
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t now;
    asm volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}
// How long a tick takes; of the processor's counter, as measured since the process began.
double seconds_per_tick();

struct Longest {
    std::atomic<std::uint64_t> ticks{0};
    std::atomic<std::uint64_t> work{0};

    void note(std::uint64_t ticks_held, std::uint64_t work_done) {
        raise(ticks, ticks_held);
        raise(work, work_done);
    }

  private:
    static void raise(std::atomic<std::uint64_t>& most, std::uint64_t value) {
        std::uint64_t known = most.load(std::memory_order_relaxed);
        while (value > known && !most.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
        }
    }
};
// Of all locks of a kind in this process, since it began or was reset.
Longest& longest(LockKind kind);
void reset(bool measure_processor_time = false);

}  // namespace holds

// Who waited gets it before who comes back for more: one waiter holds the gate until its turn.
class FairMutex {
  public:
    void lock() {
        const std::scoped_lock first(gate_);
        mutex_.lock();
    }
    void unlock() { mutex_.unlock(); }

  private:
    std::mutex gate_;
    std::mutex mutex_;
};

// A mutex whose holds are measured. Holds shared with others, where Mutex has such, are not.
template <LockKind kKind, typename Mutex = std::mutex>
class HeldMutex {
  public:
    void lock() {
        mutex_.lock();
        since_ = holds::ticks();
        work_ = 0;
    }
    void unlock() {
        const std::uint64_t now = holds::ticks(), since = since_, work = work_;
        mutex_.unlock();
        // The clock may have been changed meanwhile.
        holds::longest(kKind).note(now > since ? now - since : 0, work);
    }
    // Work of the hold under way, by its holder.
    void did(std::uint64_t work) { work_ += work; }
    std::uint64_t work() const { return work_; }

    void lock_shared() { mutex_.lock_shared(); }
    void unlock_shared() { mutex_.unlock_shared(); }

  private:
    Mutex mutex_;
    std::uint64_t since_ = 0;
    std::uint64_t work_ = 0;
};

}  // namespace suffixsvc
