// A mapped file whose pages cannot be read any more (cut short, a failing disk) does not end the process.
//
//   thread reads page p ──fault──> SIGBUS ──> handler:  is p in a guarded range?
//                                               yes:  set the range's flag, map zeros over p, go on
//                                               no:   the handler that was there before, or the system's
//                                               default
//
// The flag is set before the zeros can be read: who has read a range, and then finds its flag not set, has
// read the file. Readers may find zeros at any moment, also where they have just looked at something else.
//
// The handler is installed when the first range is guarded; a process that maps nothing has none. A handler
// that somebody else installs later would get our faults: it is put behind ours again by the next guard, or
// by keep_guarding(). Children of a fork inherit all of it.
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

    // From now on a page of [data, data + bytes) that cannot be read sets `lost` and is zeros. The range
    // begins with a page; `writable` is whether it may be written to.
    void begin(const void* data, std::size_t bytes, bool writable, std::atomic<bool>& lost);
    // Before it is unmapped.
    void end();

    struct Range;

  private:
    Range* range_ = nullptr;
};

// Puts the handler in front again, where there is one: to be called now and then.
void keep_guarding();

}  // namespace suffixsvc
