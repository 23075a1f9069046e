// Whom drafts were taken from lately: what the least recently drafted from is found by.
//
// Threads: any, at any time. note() takes a lock of its own for some nanoseconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "holds.h"

namespace suffixsvc {

// A set of at most kDrafted numbers; where it is full some older ones are dropped.
class Drafted {
  public:
    static constexpr std::uint32_t kDrafted = 1024;

    void note(std::uint32_t id) {
        const std::scoped_lock lock(mutex_);
        if (!slots_)
            slots_ = std::make_unique<Slots>();  // once: most indexes are of one session, never noted
        Slot* oldest = nullptr;
        for (std::uint32_t i = 0; i < kProbes; ++i) {
            Slot& slot = (*slots_)[(id * 0x9E3779B1u / (1u << 20) + i) % kDrafted];
            if (slot.when != 0 && slot.id == id) {
                oldest = &slot;
                break;
            }
            if (oldest == nullptr || slot.when < oldest->when) oldest = &slot;
        }
        *oldest = {id, ++now_};
    }
    // What was noted since the last call, each once, in the order of its last note.
    std::vector<std::uint32_t> take() {
        std::unique_ptr<Slots> slots;
        {
            const std::scoped_lock lock(mutex_);
            slots.swap(slots_);
            now_ = 0;
        }
        if (!slots) return {};
        std::sort(slots->begin(), slots->end(), [](Slot a, Slot b) { return a.when < b.when; });
        std::vector<std::uint32_t> ids;
        for (const Slot& slot : *slots)
            if (slot.when != 0) ids.push_back(slot.id);
        return ids;
    }

  private:
    static constexpr std::uint32_t kProbes = 8;
    struct Slot {
        std::uint32_t id = 0;
        std::uint32_t when = 0;  // 0: free
    };
    using Slots = std::array<Slot, kDrafted>;

    HeldMutex<LockKind::drafted> mutex_;
    std::unique_ptr<Slots> slots_;
    std::uint32_t now_ = 0;
};

}  // namespace suffixsvc
