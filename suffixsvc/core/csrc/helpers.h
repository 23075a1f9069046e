// A few threads that help with loops whose turns are independent of each other.
#pragma once

#include <cstddef>
#include <functional>

namespace suffixsvc {

// Calls turn(0) .. turn(count - 1), in any order and side by side, in this thread and in helpers that are
// free; returns when all have returned. `turn` does not throw and calls no share_out itself. Any thread may
// call this; callers that find the helpers busy do their turns alone. After a fork the child has no helpers.
void share_out(std::size_t count, const std::function<void(std::size_t)>& turn);

}  // namespace suffixsvc
