#include "base/files/map_guard.h"

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

// Ranges are reused and never freed: a handler may read them at any time.
struct MapGuard::Range {
    std::atomic<std::uintptr_t> begin{0};  // 0: not in use
    std::atomic<std::uintptr_t> end{0};
    std::atomic<bool> writable{false};
    std::atomic<std::atomic<bool>*> lost{nullptr};
    std::atomic<std::uint32_t> pages{0};  // pages replaced so far
    Range* next = nullptr;                // set once
};

namespace {

// After so many pages the whole range is replaced: each replaced page is a separate mapping to the system.
constexpr std::uint32_t kMaxReplacedPages = 16;

using Range = MapGuard::Range;

// The handler of SIGBUS that was installed before this one.
struct PreviousHandler {
    struct sigaction action;
    bool knows_ours;  // installed after ours: it may forward signals to our handler
};

std::atomic<Range*> ranges{nullptr};
std::atomic<const PreviousHandler*> previous{nullptr};  // never freed; null: no handler is installed
std::atomic<std::uintptr_t> page_bytes{0};
std::atomic<pthread_t> forwarding{};  // the thread that is inside another handler, called by ours
std::atomic<bool> is_forwarding{false};
std::atomic<bool> forwarded{false};  // ours called a handler that may forward to ours
std::mutex state_mutex;              // guards the installed handler and the allocation of ranges

// All functions from here to handle() are async-signal-safe.

bool map_zeros(std::uintptr_t from, std::size_t bytes, int access) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
#if defined(__linux__) && defined(__LP64__)
    // Not the library's mmap: ThreadSanitizer would record a write to the range by this thread.
    return syscall(SYS_mmap, from, bytes, access, kFlags, -1, 0) == static_cast<long>(from);
#else
    return mmap(reinterpret_cast<void*>(from), bytes, access, kFlags, -1, 0) != MAP_FAILED;
#endif
}

bool replace_pages(Range& range, std::uintptr_t begin, std::uintptr_t end, std::uintptr_t address) {
    std::atomic<bool>* const lost = range.lost.load();
    const int access = range.writable.load() ? PROT_READ | PROT_WRITE : PROT_READ;
    // the range was reused for another mapping
    if (range.begin.load() != begin || lost == nullptr) return false;
    const std::uintptr_t page = page_bytes.load(std::memory_order_relaxed);
    std::uintptr_t from = address / page * page, to = from + page;
    if (range.pages.fetch_add(1, std::memory_order_relaxed) + 1 >= kMaxReplacedPages) {
        from = begin;
        to = (end + page - 1) / page * page;
    }
    lost->store(true, std::memory_order_seq_cst);
    return map_zeros(from, to - from, access);
}

bool replace_lost_page(std::uintptr_t address) {
    for (Range* range = ranges.load(std::memory_order_acquire); range != nullptr; range = range->next) {
        const std::uintptr_t begin = range->begin.load(std::memory_order_acquire);
        const std::uintptr_t end = range->end.load(std::memory_order_acquire);
        if (begin != 0 && address >= begin && address < end && replace_pages(*range, begin, end, address))
            return true;
    }
    return false;
}

void do_default(int signal, bool sent) {
    struct sigaction action{};
    action.sa_handler = SIG_DFL;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
    if (sent) raise(signal);  // pending until the handler returns; a fault is raised again by itself
}

void forward(int signal, siginfo_t* info, void* context) {
    const PreviousHandler& next = *previous.load(std::memory_order_acquire);
    const bool sent = info->si_code <= 0;  // sent by a process, not raised by a fault
    const bool nested = is_forwarding.load() && pthread_equal(forwarding.load(), pthread_self()) != 0;
    // The other handler forwarded the signal to ours: only the system's default action is left.
    if (nested || (sent && info->si_pid == getpid() && forwarded.load())) return do_default(signal, sent);
    const bool with_info = (next.action.sa_flags & SA_SIGINFO) != 0;
    if (!with_info && next.action.sa_handler == SIG_DFL) return do_default(signal, sent);
    if (!with_info && next.action.sa_handler == SIG_IGN) return sent ? void() : do_default(signal, sent);
    if (next.knows_ours) forwarded.store(true);
    forwarding.store(pthread_self());
    is_forwarding.store(true);
    if (with_info)
        next.action.sa_sigaction(signal, info, context);
    else
        next.action.sa_handler(signal);
    is_forwarding.store(false);
}

void handle(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    if (info->si_code <= 0 || !replace_lost_page(reinterpret_cast<std::uintptr_t>(info->si_addr)))
        forward(signal, info, context);
    errno = error;
}

// Requires `changing` to be held.
void install() {
    struct sigaction now{};
    if (sigaction(SIGBUS, nullptr, &now) != 0) return;
    const bool is_first = previous.load() == nullptr;
    if (!is_first && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handle) return;
    page_bytes.store(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)));
    previous.store(new PreviousHandler{now, !is_first}, std::memory_order_release);
    forwarded.store(false);
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void MapGuard::begin(const void* data, std::size_t bytes, bool writable, std::atomic<bool>& lost) {
    end();
    const std::scoped_lock lock(state_mutex);
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
    const std::scoped_lock lock(state_mutex);
    range_->begin = 0;
    range_->lost = nullptr;
    range_ = nullptr;
}

void reinstall_sigbus_handler() {
    const std::scoped_lock lock(state_mutex);
    if (previous.load() != nullptr) install();
}

}  // namespace suffixsvc
