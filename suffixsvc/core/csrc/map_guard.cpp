#include "map_guard.h"

#include <pthread.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace suffixsvc {

// Ranges are used again, and never freed: a handler may look at them at any time.
struct MapGuard::Range {
    std::atomic<std::uintptr_t> begin{0};  // 0: not in use
    std::atomic<std::uintptr_t> end{0};
    std::atomic<bool> writable{false};
    std::atomic<std::atomic<bool>*> lost{nullptr};
    std::atomic<std::uint32_t> pages{0};  // replaced
    Range* next = nullptr;                // set once
};

namespace {

// A file that lost so many pages one by one is lost as a whole: each is a mapping of its own to the system.
constexpr std::uint32_t kManyPages = 16;

using Range = MapGuard::Range;

// What SIGBUS did before.
struct Before {
    struct sigaction action;
    bool after_us;  // who installed it knew our handler, and may pass on to it
};

std::atomic<Range*> ranges{nullptr};
std::atomic<const Before*> before{nullptr};  // each stays for ever; null: no handler is installed
std::atomic<std::uintptr_t> page_bytes{0};
std::atomic<pthread_t> passing{};  // the thread that is in another handler, called by ours
std::atomic<bool> is_passing{false};
std::atomic<bool> passed{false};  // ours called another one that knows it
std::mutex changing;              // what is installed, and which ranges are in use

// Everything from here to handle() may be called by a signal handler.

bool map_zeros(std::uintptr_t from, std::size_t bytes, int access) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
#if defined(__linux__) && defined(__LP64__)
    // Not the library's function: ThreadSanitizer takes that for a write to the range by this thread.
    return syscall(SYS_mmap, from, bytes, access, kFlags, -1, 0) == static_cast<long>(from);
#else
    return mmap(reinterpret_cast<void*>(from), bytes, access, kFlags, -1, 0) != MAP_FAILED;
#endif
}

bool replace(Range& range, std::uintptr_t begin, std::uintptr_t end, std::uintptr_t address) {
    std::atomic<bool>* const lost = range.lost.load();
    const int access = range.writable.load() ? PROT_READ | PROT_WRITE : PROT_READ;
    if (range.begin.load() != begin || lost == nullptr) return false;  // it is another one by now
    const std::uintptr_t page = page_bytes.load(std::memory_order_relaxed);
    std::uintptr_t from = address / page * page, to = from + page;
    if (range.pages.fetch_add(1, std::memory_order_relaxed) + 1 >= kManyPages) {
        from = begin;
        to = (end + page - 1) / page * page;
    }
    lost->store(true, std::memory_order_seq_cst);
    return map_zeros(from, to - from, access);
}

bool is_ours(std::uintptr_t address) {
    for (Range* range = ranges.load(std::memory_order_acquire); range != nullptr; range = range->next) {
        const std::uintptr_t begin = range->begin.load(std::memory_order_acquire);
        const std::uintptr_t end = range->end.load(std::memory_order_acquire);
        if (begin != 0 && address >= begin && address < end && replace(*range, begin, end, address))
            return true;
    }
    return false;
}

void do_default(int signal, bool sent) {
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
    if (sent) raise(signal);  // pending until the handler returns; a fault comes again by itself
}

void pass_on(int signal, siginfo_t* info, void* context) {
    const Before& next = *before.load(std::memory_order_acquire);
    const bool sent = info->si_code <= 0;  // by somebody, not by a fault
    const bool nested = is_passing.load() && pthread_equal(passing.load(), pthread_self()) != 0;
    // It has passed the signal on to us: whoever is left is the system.
    if (nested || (sent && info->si_pid == getpid() && passed.load())) return do_default(signal, sent);
    const bool with_info = (next.action.sa_flags & SA_SIGINFO) != 0;
    if (!with_info && next.action.sa_handler == SIG_DFL) return do_default(signal, sent);
    if (!with_info && next.action.sa_handler == SIG_IGN) return sent ? void() : do_default(signal, sent);
    if (next.after_us) passed.store(true);
    passing.store(pthread_self());
    is_passing.store(true);
    if (with_info)
        next.action.sa_sigaction(signal, info, context);
    else
        next.action.sa_handler(signal);
    is_passing.store(false);
}

void handle(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    if (info->si_code <= 0 || !is_ours(reinterpret_cast<std::uintptr_t>(info->si_addr)))
        pass_on(signal, info, context);
    errno = error;
}

// `changing` is held.
void install() {
    struct sigaction now{};
    if (sigaction(SIGBUS, nullptr, &now) != 0) return;
    const bool is_first = before.load() == nullptr;
    if (!is_first && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handle) return;
    page_bytes.store(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)));
    before.store(new Before{now, !is_first}, std::memory_order_release);
    passed.store(false);
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void MapGuard::begin(const void* data, std::size_t bytes, bool writable, std::atomic<bool>& lost) {
    end();
    const std::scoped_lock lock(changing);
    install();
    Range* range = ranges.load(std::memory_order_relaxed);
    while (range != nullptr && range->begin.load(std::memory_order_relaxed) != 0) range = range->next;
    const bool fresh = range == nullptr;
    if (fresh) {
        range = new Range;
        range->next = ranges.load(std::memory_order_relaxed);
    }
    range->end = reinterpret_cast<std::uintptr_t>(data) + bytes;
    range->writable = writable;
    range->lost = &lost;
    range->pages = 0;
    range->begin = reinterpret_cast<std::uintptr_t>(data);
    if (fresh) ranges.store(range, std::memory_order_release);
    range_ = range;
}

void MapGuard::end() {
    if (range_ == nullptr) return;
    const std::scoped_lock lock(changing);
    range_->begin = 0;
    range_->lost = nullptr;
    range_ = nullptr;
}

void keep_guarding() {
    const std::scoped_lock lock(changing);
    if (before.load() != nullptr) install();
}

}  // namespace suffixsvc
