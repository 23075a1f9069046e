// The sealed segments that an index is drafted from together with: an immutable list, replaced as a whole.
//
// Threads: any, at any time. Who holds a list keeps its segments mapped.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace suffixsvc {

class Segment;

class SegmentList {
  public:
    using Segments = std::vector<std::shared_ptr<const Segment>>;

    void set(Segments segments) {
        auto next = std::make_shared<const Segments>(std::move(segments));
        const std::scoped_lock lock(mutex_);
        now_.swap(next);
        version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }  // the old list, and what nobody else uses of it, goes after the lock
    // Grows with every set(); 0: nothing was ever set.
    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
    // The list and its version; null where nothing was ever set.
    std::shared_ptr<const Segments> get(std::uint64_t& version) const {
        const std::scoped_lock lock(mutex_);
        version = version_.load(std::memory_order_relaxed);
        return now_;
    }

  private:
    mutable std::mutex mutex_;
    std::shared_ptr<const Segments> now_;
    std::atomic<std::uint64_t> version_{0};
};

}  // namespace suffixsvc
