// A parallel loop over independent iterations, run by a fixed pool of helper threads.
#pragma once

#include <cstddef>
#include <functional>

namespace suffixsvc {

// Calls body(0) .. body(count - 1) in any order and concurrently, in the calling thread and in idle helpers;
// returns after the last call has returned. `body` must not throw and must not call parallel_for. May be
// called from any thread; a caller that finds the helpers busy runs all iterations itself. After a fork the
// child process has no helpers.
void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace suffixsvc
