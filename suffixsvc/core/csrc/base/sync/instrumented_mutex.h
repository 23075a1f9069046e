// Mutexes that record the longest time and the most work for which they were held.
//
// A lock that decode steps wait for is held for a bounded amount of work; long jobs release it between
// batches. Work is counted in nodes touched, where it can be large, so that a test can bound it on any
// machine. The hold time is for benchmarks: wall time, or the holder's processor time where other programs
// must not count. Recording costs two reads of the processor's counter per hold.
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
    index,          // writers of a namespace's index
    segment,        // tombstones of a sealed segment
    segment_list,   // a namespace's list of segments
    recently_used,  // the texts that drafts were taken from most recently
    learner,        // the copy that a namespace makes of its tables at its first update
    dispatcher,     // the sessions of a StepDispatcher
};
inline constexpr std::array<const char*, 6> kLockNames{"index",         "segment", "segment_list",
                                                       "recently_used", "learner", "dispatcher"};

namespace lock_holds {

// Whether holds are measured in processor time, which takes a system call per reading.
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
// Seconds per tick; for the processor's counter, as measured since the process began.
double seconds_per_tick();

struct HoldMaxima {
    std::atomic<std::uint64_t> ticks{0};
    std::atomic<std::uint64_t> work{0};

    void record(std::uint64_t ticks_held, std::uint64_t work_done) {
        raise(ticks, ticks_held);
        raise(work, work_done);
    }

  private:
    static void raise(std::atomic<std::uint64_t>& maximum, std::uint64_t value) {
        std::uint64_t known = maximum.load(std::memory_order_relaxed);
        while (value > known && !maximum.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
        }
    }
};
// The maxima over all locks of a kind in this process, since its start or the last reset().
HoldMaxima& maxima(LockKind kind);
void reset(bool measure_processor_time = false);

}  // namespace lock_holds

// Fair mutex: a waiting thread acquires it before a thread that released it and locks it again. One waiter at
// a time holds the gate.
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

// A mutex that records its exclusive holds in lock_holds. Shared holds, where Mutex has them, are
// not recorded.
template <LockKind kKind, typename Mutex = std::mutex>
class InstrumentedMutex {
  public:
    void lock() {
        mutex_.lock();
        since_ = lock_holds::ticks();
        work_ = 0;
    }
    void unlock() {
        const std::uint64_t now = lock_holds::ticks(), since = since_, work = work_;
        mutex_.unlock();
        // reset() may have switched clocks during the hold.
        lock_holds::maxima(kKind).record(now > since ? now - since : 0, work);
    }
    // Adds work to the current hold. For the holder only.
    void add_work(std::uint64_t work) { work_ += work; }
    std::uint64_t work() const { return work_; }

    void lock_shared() { mutex_.lock_shared(); }
    void unlock_shared() { mutex_.unlock_shared(); }

  private:
    Mutex mutex_;
    std::uint64_t since_ = 0;
    std::uint64_t work_ = 0;
};

}  // namespace suffixsvc
