// A step's answer as the bytes of the wire format (proto/suffixsvc/v1): what protobuf would write, in one go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "session.h"

namespace suffixsvc {

// A serialised suffixsvc.v1.StepBatchReply with one item, a StepReply. Several of them laid end to end are
// the reply of the whole batch, as repeated fields of protobuf are. `sources` maps the core's source numbers
// to those of the wire.
std::string pack_step_reply(std::string_view session_id, std::uint64_t seq,
                            const std::vector<DraftToken>& draft, std::uint64_t length,
                            std::string_view sources);

// A serialised StreamReply to message `id`, of items from pack_step_reply: all of them are there.
std::string pack_stream_reply(std::uint64_t id, const std::vector<std::optional<std::string>>& items);

}  // namespace suffixsvc
