// Plain step messages of the wire format (proto/suffixsvc/v1) without protobuf: parses requests, and
// serialises answers to the bytes that protobuf would write, in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "draft/session/session.h"

namespace suffixsvc {

enum class TreeMode : int { chain, tree, automatic };

// A decode step of one session.
struct StepRequest {
    std::string_view session_id;
    std::uint64_t seq = 0;    // 0: not numbered
    std::string_view tokens;  // packed little-endian int32, not validated
    std::int64_t at = -1;     // absent: -1
    std::int32_t max_draft_tokens = 0;
    TreeMode tree = TreeMode::chain;
    std::int32_t width = 0, accepted = 0;   // what was verified; width 0: absent
    std::shared_ptr<const CostCurve> cost;  // replaces the session's cost curve; null: unchanged
};

struct ParsedBatch {
    std::uint64_t id = 0;
    bool no_reply = false;
    std::vector<StepRequest> steps;  // views into the message
};

// Parses a StreamRequest with a batch of steps. Returns nullopt for every other message, for steps with a
// verify_cost, with tree mode AUTO, with values out of range or unknown fields, and for more than `max_steps`
// steps: these are left to protobuf.
std::optional<ParsedBatch> parse_steps(std::string_view message, std::size_t max_steps);

// A serialised suffixsvc.v1.StepBatchReply with one item, a StepReply. Concatenated, several of them are the
// reply of a whole batch, as repeated fields of protobuf are. `sources` maps the core's source numbers to
// those of the wire.
std::string pack_step_reply(std::string_view session_id, std::uint64_t seq,
                            const std::vector<DraftToken>& draft, std::uint64_t length,
                            std::string_view sources);

// A serialised StreamReply to message `id`, made of results of pack_step_reply.
std::string pack_stream_reply(std::uint64_t id, const std::vector<std::string>& items);

}  // namespace suffixsvc
