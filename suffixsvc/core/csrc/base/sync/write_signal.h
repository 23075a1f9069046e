// Tells one waiting thread that sessions wrote tokens, at a cost of nanoseconds for a step if the thread was
// told already. The thread waits for a descriptor to become readable, in code that is not C++: a thread that
// waits when the interpreter ends is ended inside its wait.
//
// The descriptor is a timer's. A thread that is to be told later than the write is woken by the kernel then,
// not by the step, which would otherwise run beside it: 50 us of a step's 250 with cold caches.
//
// Threads: notify() from any; clear() from the one that waits.
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <system_error>

namespace suffixsvc {

class WriteSignal {
  public:
    // `delay`: from a write until the thread is told. Throws std::system_error: no descriptors are left.
    explicit WriteSignal(std::chrono::nanoseconds delay = {})
        : after_(timer_value(delay)), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
        if (timer_ < 0) throw std::system_error(errno, std::generic_category(), "cannot make a timer");
    }
    WriteSignal(const WriteSignal&) = delete;
    WriteSignal& operator=(const WriteSignal&) = delete;
    ~WriteSignal() { ::close(timer_); }

    void notify() {
        if (written_.exchange(true, std::memory_order_acq_rel)) return;
        ::timerfd_settime(timer_, 0, &after_, nullptr);
    }
    // Readable after a notify() since the last clear(), and the delay.
    int descriptor() const { return timer_; }
    // What was written before this call is seen by a thread that looks after it. If it comes within the
    // delay, the thread is told once more.
    void clear() {
        std::uint64_t expirations = 0;
        [[maybe_unused]] const auto size = ::read(timer_, &expirations, sizeof expirations);
        written_.store(false, std::memory_order_release);
    }

  private:
    // Zero would disarm a timer.
    static itimerspec timer_value(std::chrono::nanoseconds delay) {
        const auto ns = delay.count() > 0 ? delay.count() : 1;
        return {.it_interval = {}, .it_value = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000}};
    }

    const itimerspec after_;
    const int timer_;
    std::atomic<bool> written_{false};
};

}  // namespace suffixsvc
