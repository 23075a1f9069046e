#include "base/sync/instrumented_mutex.h"

#include <chrono>
#include <ctime>

namespace suffixsvc {

namespace {

std::array<lock_holds::HoldMaxima, kLockNames.size()> all;

struct Start {
    std::uint64_t ticks = lock_holds::ticks();
    std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};
const Start start;

}  // namespace

std::uint64_t lock_holds::processor_ticks() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
}

double lock_holds::seconds_per_tick() {
    if (processor_time.load(std::memory_order_relaxed)) return 1e-9;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start.time;
    const std::uint64_t passed = ticks() - start.ticks;
    return passed > 0 ? seconds.count() / static_cast<double>(passed) : 0.0;
}

lock_holds::HoldMaxima& lock_holds::maxima(LockKind kind) { return all[static_cast<std::size_t>(kind)]; }

void lock_holds::reset(bool measure_processor_time) {
    processor_time.store(measure_processor_time, std::memory_order_relaxed);
    for (HoldMaxima& each : all) {
        each.ticks.store(0, std::memory_order_relaxed);
        each.work.store(0, std::memory_order_relaxed);
    }
}

}  // namespace suffixsvc
