// Tells one waiting thread that sessions wrote tokens, at a cost of nanoseconds for a step while nobody waits
// or the thread was told already.
//
// Threads: notify() from any; wait() from one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace suffixsvc {

class WriteSignal {
  public:
    void notify() {
        if (written_.exchange(true, std::memory_order_acq_rel)) return;
        // The lock orders this after the waiter's look at the flag: it waits, or sees it.
        {
            const std::scoped_lock lock(mutex_);
        }
        changed_.notify_one();
    }
    // Waits for a notify() since the last call returned true; false after so many seconds without one.
    bool wait(double seconds) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                          [this] { return written_.load(std::memory_order_acquire); });
        return written_.exchange(false, std::memory_order_acq_rel);
    }

  private:
    std::atomic<bool> written_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

}  // namespace suffixsvc
