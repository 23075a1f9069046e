// Records which texts drafts were taken from most recently, so that the least recently used can be evicted.
//
// Threads: any, at any time. record() holds an internal lock for some nanoseconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/sync/instrumented_mutex.h"

namespace suffixsvc {

// A hash table of at most kCapacity ids. An id has kProbes possible places; if other ids take all of them, it
// replaces the one that was used least recently.
class RecentlyUsed {
  public:
    static constexpr std::uint32_t kCapacity = 1024;

    void record(std::uint32_t id) {
        const std::scoped_lock lock(mutex_);
        // Allocated here: most indexes belong to one session and record nothing.
        if (!entries_) entries_ = std::make_unique<Entries>();
        Entry* oldest = nullptr;
        for (std::uint32_t i = 0; i < kProbes; ++i) {
            Entry& entry = (*entries_)[(id * 0x9E3779B1u / (1u << 20) + i) % kCapacity];
            if (entry.when != 0 && entry.id == id) {
                oldest = &entry;
                break;
            }
            if (oldest == nullptr || entry.when < oldest->when) oldest = &entry;
        }
        *oldest = {id, ++now_};
    }
    // The ids recorded since the last call, each once, in the order of their last use.
    std::vector<std::uint32_t> take() {
        std::unique_ptr<Entries> entries;
        {
            const std::scoped_lock lock(mutex_);
            entries.swap(entries_);
            now_ = 0;
        }
        if (!entries) return {};
        std::sort(entries->begin(), entries->end(), [](Entry a, Entry b) { return a.when < b.when; });
        std::vector<std::uint32_t> ids;
        for (const Entry& entry : *entries)
            if (entry.when != 0) ids.push_back(entry.id);
        return ids;
    }

  private:
    static constexpr std::uint32_t kProbes = 8;
    struct Entry {
        std::uint32_t id = 0;
        std::uint32_t when = 0;  // 0: free
    };
    using Entries = std::array<Entry, kCapacity>;

    InstrumentedMutex<LockKind::recently_used> mutex_;
    std::unique_ptr<Entries> entries_;
    std::uint32_t now_ = 0;
};

}  // namespace suffixsvc
