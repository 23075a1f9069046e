#include "grace.h"

#include <array>
#include <thread>

namespace suffixsvc {

namespace {

// Threads that read at the same moment; more than that wait for each other.
constexpr std::size_t kSlots = 128;

struct alignas(64) Slot {
    std::atomic<std::uint64_t> era{0};  // that its reader came in; 0: nobody
};

std::array<Slot, kSlots> slots;
std::atomic<std::uint64_t> now{1};
std::atomic<std::size_t> threads{0};

}  // namespace

Reading::Reading() {
    thread_local std::size_t mine = threads.fetch_add(1, std::memory_order_relaxed) % kSlots;
    std::uint64_t era = now.load();
    for (std::size_t tried = 0;; mine = (mine + 1) % kSlots) {
        slot_ = &slots[mine].era;
        std::uint64_t nobody = 0;
        if (slot_->load(std::memory_order_relaxed) == 0 && slot_->compare_exchange_strong(nobody, era)) break;
        if (++tried % kSlots == 0) std::this_thread::yield();
    }
    for (std::uint64_t again; (again = now.load()) != era; era = again) slot_->store(again);
}

Reading::~Reading() { slot_->store(0, std::memory_order_release); }

#ifdef SUFFIXSVC_JITTER
void jitter() {
    thread_local std::uint32_t x = 0x9E3779B9u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    // Where nobody ever read from another thread there is nothing to see.
    if (x % 64 == 0 && threads.load(std::memory_order_relaxed) > 1) std::this_thread::yield();
}
#endif

std::uint64_t grace::end_era() { return now.fetch_add(1); }

bool grace::over(std::uint64_t era) {
    for (const Slot& slot : slots) {
        const std::uint64_t came = slot.era.load();
        if (came != 0 && came <= era) return false;
    }
    return true;
}

}  // namespace suffixsvc
