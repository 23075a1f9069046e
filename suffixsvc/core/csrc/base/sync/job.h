// Progress and cancellation of a long job, for other threads. Thread-safe.
#pragma once

#include <atomic>

#include "base/files/file_fault.h"

namespace suffixsvc {

struct SegmentJob {
    std::atomic<bool> cancelled{false};
    std::atomic<double> done{0.0};  // 0 .. 1

    // Throws FileFault if the job was cancelled.
    void poll() const {
        if (cancelled.load(std::memory_order_relaxed))
            throw FileFault(FileFault::Kind::cancelled, "the job was cancelled");
    }
    void report(double share) { done.store(share, std::memory_order_relaxed); }
};

}  // namespace suffixsvc
