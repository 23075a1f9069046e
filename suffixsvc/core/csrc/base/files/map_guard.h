// Keeps the process alive when pages of a mapped file cannot be read any more (truncated file, failing disk).
//
//   thread reads page p ──fault──> SIGBUS ──> handler:  is p in a guarded range?
//                                                yes:  set the range's flag, map zeros over p, return
//                                                no:   call the previous handler, or the system's default
//
// The flag is set before the zeros can be read: a thread that has read a range and then finds the flag not
// set has read the file. Readers may find zeros at any moment, also at an address that they read before.
//
// The handler is installed when the first range is guarded; a process without guarded ranges has none. A
// handler that other code installs later would receive these faults: the next guard, or
// reinstall_sigbus_handler(), installs this handler in front of it again. Child processes inherit all of it
// in a fork.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstddef>

namespace suffixsvc {

class MapGuard {
  public:
    MapGuard() = default;
    MapGuard(const MapGuard&) = delete;
    MapGuard& operator=(const MapGuard&) = delete;
    ~MapGuard() { end(); }

    // From now on, a page of [data, data + bytes) that cannot be read sets `lost` and reads as zeros. `data`
    // is page-aligned; `writable` states whether the range may be written to.
    void begin(const void* data, std::size_t bytes, bool writable, std::atomic<bool>& lost);
    // To be called before the range is unmapped.
    void end();

    struct Range;

  private:
    Range* range_ = nullptr;
};

// Installs the handler in front of handlers that were installed later, if it is in use. To be
// called periodically.
void reinstall_sigbus_handler();

}  // namespace suffixsvc
