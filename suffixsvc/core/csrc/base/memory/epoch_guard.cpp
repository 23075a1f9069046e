#include "base/memory/epoch_guard.h"

#include <array>
#include <thread>

namespace suffixsvc {

namespace {

// Threads that can read at the same moment; a further thread waits for a free slot.
constexpr std::size_t kSlots = 128;

struct alignas(64) ReaderSlot {
    std::atomic<std::uint64_t> epoch{0};  // in which the reader began; 0: the slot is free
};

std::array<ReaderSlot, kSlots> slots;
std::atomic<std::uint64_t> now{1};
std::atomic<std::size_t> threads{0};

}  // namespace

EpochGuard::EpochGuard() {
    thread_local std::size_t mine = threads.fetch_add(1, std::memory_order_relaxed) % kSlots;
    std::uint64_t epoch = now.load();
    for (std::size_t tried = 0;; mine = (mine + 1) % kSlots) {
        slot_ = &slots[mine].epoch;
        std::uint64_t unused = 0;
        if (slot_->load(std::memory_order_relaxed) == 0 && slot_->compare_exchange_strong(unused, epoch))
            break;
        if (++tried % kSlots == 0) std::this_thread::yield();
    }
    for (std::uint64_t again; (again = now.load()) != epoch; epoch = again) slot_->store(again);
}

EpochGuard::~EpochGuard() { slot_->store(0, std::memory_order_release); }

#ifdef SUFFIXSVC_JITTER
void jitter() {
    thread_local std::uint32_t x = 0x9E3779B9u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    // Without a second thread there is nothing to interleave with.
    if (x % 64 == 0 && threads.load(std::memory_order_relaxed) > 1) std::this_thread::yield();
}
#endif

std::uint64_t epoch::advance() { return now.fetch_add(1); }

bool epoch::quiescent(std::uint64_t epoch) {
    for (const ReaderSlot& slot : slots) {
        const std::uint64_t began = slot.epoch.load();
        if (began != 0 && began <= epoch) return false;
    }
    return true;
}

}  // namespace suffixsvc
