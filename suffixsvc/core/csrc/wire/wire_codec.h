// Serialises the answer of a step in the wire format (proto/suffixsvc/v1): the bytes that protobuf would
// write, in one pass.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "draft/session.h"

namespace suffixsvc {

// A serialised suffixsvc.v1.StepBatchReply with one item, a StepReply. Concatenated, several of them are the
// reply of a whole batch, as repeated fields of protobuf are. `sources` maps the core's source numbers to
// those of the wire.
std::string pack_step_reply(std::string_view session_id, std::uint64_t seq,
                            const std::vector<DraftToken>& draft, std::uint64_t length,
                            std::string_view sources);

// A serialised StreamReply to message `id`, made of results of pack_step_reply.
std::string pack_stream_reply(std::uint64_t id, const std::vector<std::string>& items);

}  // namespace suffixsvc
