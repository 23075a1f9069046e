// The sealed segments that an index is drafted from together with: an immutable list, replaced as a whole.
//
// To unmap a large file takes milliseconds. So who reads is never the last to let go of a segment: lists that
// were replaced are kept until their readers have gone, and are let go of by who replaces or reaps.
//
// Threads: any, at any time. Who holds a list keeps its segments mapped.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "holds.h"

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
    // Lets go of replaced lists that nobody holds any more, and with them of segments.
    void reap() {
        std::vector<std::shared_ptr<const Segments>> gone;  // after the lock
        const std::scoped_lock lock(mutex_);
        const auto last = std::partition(replaced_.begin(), replaced_.end(),
                                         [](const auto& list) { return list.use_count() > 1; });
        gone.assign(std::make_move_iterator(last), std::make_move_iterator(replaced_.end()));
        replaced_.erase(last, replaced_.end());
    }
    // Grows with every set(); 0: nothing was ever set.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
    // The list and its version; null where nothing was ever set.
    std::shared_ptr<const Segments> get(std::uint64_t& version) const {
        const std::scoped_lock lock(mutex_);
        version = version_.load(std::memory_order_relaxed);
        return now_;
    }

  private:
    mutable HeldMutex<LockKind::segments> mutex_;
    std::shared_ptr<const Segments> now_;
    std::vector<std::shared_ptr<const Segments>> replaced_;
    std::atomic<std::uint64_t> version_{0};
};

}  // namespace suffixsvc
