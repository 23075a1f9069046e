#include "helpers.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace suffixsvc {

namespace {

constexpr unsigned kMostHelpers = 15;

// One loop at a time. A helper sleeps until the generation changes, takes turns by the counter, and says
// that it is out of the loop before it sleeps again.
class Helpers {
  public:
    Helpers() : home_(::getpid()) {
        const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
        try {
            for (; present_ + 1 < std::min(cores, kMostHelpers + 1); ++present_)
                std::thread([this] { help(); }).detach();  // as long-lived as the process
        } catch (const std::system_error&) {
            // the system gives no more threads: those that there are have to do
        }
    }

    bool run(std::size_t count, const std::function<void(std::size_t)>& turn) {
        if (present_ == 0 || home_ != ::getpid()) return false;
        const std::unique_lock whole(busy_, std::try_to_lock);
        if (!whole.owns_lock()) return false;
        {
            const std::scoped_lock lock(mutex_);
            turn_ = &turn;
            count_ = count;
            next_.store(0, std::memory_order_relaxed);
            ++generation_;
        }
        wake_.notify_all();
        take_turns(turn, count);
        std::unique_lock lock(mutex_);
        turn_ = nullptr;  // who wakes up late finds nothing to do
        left_.wait(lock, [this] { return inside_ == 0; });
        return true;
    }

  private:
    void take_turns(const std::function<void(std::size_t)>& turn, std::size_t count) {
        for (std::size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) turn(i);
    }

    void help() {
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return generation_ != seen; });
            seen = generation_;
            if (turn_ == nullptr) continue;
            const auto* turn = turn_;
            const std::size_t count = count_;
            ++inside_;
            lock.unlock();
            take_turns(*turn, count);
            lock.lock();
            if (--inside_ == 0) left_.notify_one();
        }
    }

    const pid_t home_;
    unsigned present_ = 0;
    std::mutex busy_;  // held by the caller whose loop it is
    std::mutex mutex_;
    std::condition_variable wake_, left_;
    const std::function<void(std::size_t)>* turn_ = nullptr;  // guarded by mutex_, as all below but next_
    std::size_t count_ = 0;
    std::uint64_t generation_ = 0;
    unsigned inside_ = 0;
    std::atomic<std::size_t> next_{0};
};

}  // namespace

void share_out(std::size_t count, const std::function<void(std::size_t)>& turn) {
    // Never destroyed: the helpers use it until the process is gone.
    static Helpers* const helpers = new Helpers;
    if (helpers->run(count, turn)) return;
    for (std::size_t i = 0; i < count; ++i) turn(i);
}

}  // namespace suffixsvc
