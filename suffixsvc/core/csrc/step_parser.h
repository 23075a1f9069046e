// Plain step messages of the wire format (proto/suffixsvc/v1), read without protobuf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace suffixsvc {

struct ParsedStep {
    std::string_view session_id;
    std::uint64_t seq = 0;
    std::string_view tokens;  // packed little-endian int32, not checked
    std::int64_t at = -1;     // absent: -1
    std::int32_t max_draft_tokens = 0;
    bool tree = false;
    std::int32_t width = 0, accepted = 0;  // verified; width 0: absent
};

struct ParsedBatch {
    std::uint64_t id = 0;
    std::vector<ParsedStep> steps;  // views into the message
};

// A StreamRequest with a batch of steps. Nothing for any other message, and for steps with a verify_cost,
// with tree mode AUTO, with values out of range or fields that this does not know, and for more than `most`
// steps: protobuf reads those.
std::optional<ParsedBatch> parse_steps(std::string_view message, std::size_t most);

}  // namespace suffixsvc
