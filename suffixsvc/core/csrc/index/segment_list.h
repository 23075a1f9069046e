// The sealed segments that belong to an index: an immutable list that is replaced as a whole.
//
// Unmapping a large file takes milliseconds, so a reader must never release the last reference to a segment:
// replaced lists are retained until their readers have released them, and are then released by the thread
// that replaces or reaps.
//
// Threads: any, at any time. A thread that holds a list keeps its segments mapped.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/sync/instrumented_mutex.h"

namespace suffixsvc {

class Segment;

class SegmentList {
  public:
    using Segments = std::vector<std::shared_ptr<const Segment>>;

    void set(Segments segments) {
        auto next = std::make_shared<const Segments>(std::move(segments));
        {
            const std::scoped_lock lock(mutex_);
            now_.swap(next);
            version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
            if (next) replaced_.push_back(std::move(next));
        }
        reap();
    }
    // Releases replaced lists that no reader holds any more, and with them their segments.
    void reap() {
        std::vector<std::shared_ptr<const Segments>> released;  // destroyed after the lock is released
        const std::scoped_lock lock(mutex_);
        const auto last = std::partition(replaced_.begin(), replaced_.end(),
                                         [](const auto& list) { return list.use_count() > 1; });
        released.assign(std::make_move_iterator(last), std::make_move_iterator(replaced_.end()));
        replaced_.erase(last, replaced_.end());
    }
    // Incremented by every set(); 0: set() was never called.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
    // The list and its version; null before the first set().
    std::shared_ptr<const Segments> get(std::uint64_t& version) const {
        const std::scoped_lock lock(mutex_);
        version = version_.load(std::memory_order_relaxed);
        return now_;
    }

  private:
    mutable InstrumentedMutex<LockKind::segment_list> mutex_;
    std::shared_ptr<const Segments> now_;
    std::vector<std::shared_ptr<const Segments>> replaced_;
    std::atomic<std::uint64_t> version_{0};
};

}  // namespace suffixsvc
