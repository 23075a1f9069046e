// Tells one waiting thread that sessions wrote tokens, at a cost of nanoseconds for a step if the thread was
// told already. The thread waits for a descriptor to become readable, in code that is not C++: a thread that
// waits when the interpreter ends is ended inside its wait.
//
// Threads: notify() from any; clear() from the one that waits.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>

namespace suffixsvc {

class WriteSignal {
  public:
    // Throws std::system_error: no descriptors are left.
    WriteSignal() {
        if (::pipe(ends_.data()) != 0)
            throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
        for (const int end : ends_) {
            ::fcntl(end, F_SETFL, O_NONBLOCK);
            ::fcntl(end, F_SETFD, FD_CLOEXEC);
        }
    }
    WriteSignal(const WriteSignal&) = delete;
    WriteSignal& operator=(const WriteSignal&) = delete;
    ~WriteSignal() {
        for (const int end : ends_) ::close(end);
    }

    void notify() {
        if (written_.exchange(true, std::memory_order_acq_rel)) return;
        const char byte = 1;
        [[maybe_unused]] const auto sent = ::write(ends_[1], &byte, 1);  // full: readable already
    }
    // Readable after a notify() since the last clear().
    int descriptor() const { return ends_[0]; }
    // What was written before this call is seen by a thread that looks after it.
    void clear() {
        std::array<char, 16> bytes;
        while (::read(ends_[0], bytes.data(), bytes.size()) > 0) {
        }
        written_.store(false, std::memory_order_release);
    }

  private:
    std::array<int, 2> ends_{-1, -1};
    std::atomic<bool> written_{false};
};

}  // namespace suffixsvc
