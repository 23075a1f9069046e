#include "base/sync/parallel_for.h"

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

constexpr unsigned kMaxHelpers = 15;

// Runs one loop at a time. A helper sleeps until the generation changes, takes iterations from the counter,
// and reports that it has left the loop before it sleeps again.
class HelperPool {
  public:
    HelperPool() : owner_pid_(::getpid()) {
        const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
        try {
            for (; threads_ + 1 < std::min(cores, kMaxHelpers + 1); ++threads_)
                std::thread([this] { help(); }).detach();  // runs until the process ends
        } catch (const std::system_error&) {
            // out of threads: the pool stays as small as it is
        }
    }

    bool run(std::size_t count, const std::function<void(std::size_t)>& body) {
        if (threads_ == 0 || owner_pid_ != ::getpid()) return false;
        const std::unique_lock loop(busy_, std::try_to_lock);
        if (!loop.owns_lock()) return false;
        {
            const std::scoped_lock lock(mutex_);
            body_ = &body;
            count_ = count;
            next_.store(0, std::memory_order_relaxed);
            ++generation_;
        }
        wake_.notify_all();
        run_iterations(body, count);
        std::unique_lock lock(mutex_);
        body_ = nullptr;  // a helper that wakes up late finds nothing to do
        finished_.wait(lock, [this] { return active_ == 0; });
        return true;
    }

  private:
    void run_iterations(const std::function<void(std::size_t)>& body, std::size_t count) {
        for (std::size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    }

    void help() {
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return generation_ != seen; });
            seen = generation_;
            if (body_ == nullptr) continue;
            const auto* body = body_;
            const std::size_t count = count_;
            ++active_;
            lock.unlock();
            run_iterations(*body, count);
            lock.lock();
            if (--active_ == 0) finished_.notify_one();
        }
    }

    const pid_t owner_pid_;
    unsigned threads_ = 0;
    std::mutex busy_;  // held by the caller whose loop is running
    std::mutex mutex_;
    std::condition_variable wake_, finished_;
    // guarded by mutex_, as are all members below but next_
    const std::function<void(std::size_t)>* body_ = nullptr;
    std::size_t count_ = 0;
    std::uint64_t generation_ = 0;
    unsigned active_ = 0;
    std::atomic<std::size_t> next_{0};
};

}  // namespace

void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
    // Never destroyed: the helpers use it until the process ends.
    static HelperPool* const helpers = new HelperPool;
    if (helpers->run(count, body)) return;
    for (std::size_t i = 0; i < count; ++i) body(i);
}

}  // namespace suffixsvc
