// One connection of the direct socket (docs/protocol.md): requests that the dispatcher can answer never leave
// this loop.
//
//   socket ──frames──> dispatcher ──> socket
//                       │ a message that it cannot answer: returned to the caller of next()
//
// A step that is answered here runs no Python on the service's side. After a decode step of tens of
// milliseconds the caches are cold, and an interpreter would suffer most from that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/step_dispatcher.h"

namespace suffixsvc {

// A message, or the end of the connection, that the caller has to handle.
struct UnhandledMessage {
    enum class Kind { message, end, too_long };
    Kind kind = Kind::end;
    std::string message;            // the whole message
    std::vector<StepAnswer> items;  // answers to its steps: see DispatchReply
    std::size_t length = 0;         // too_long: the length that the frame announced
};

// Not thread-safe. The socket must be blocking; it stays the property of the caller.
class FramedConnection {
  public:
    // `max_bytes`: maximum length of a message in bytes.
    FramedConnection(StepDispatcher& dispatcher, int socket, std::size_t max_bytes);
    FramedConnection(const FramedConnection&) = delete;
    FramedConnection& operator=(const FramedConnection&) = delete;

    // Reads and answers messages until one arrives that the dispatcher cannot answer, or the connection ends;
    // a failure of the socket counts as its end. After a message that is too long nothing more can be read.
    UnhandledMessage next();

  private:
    // The next whole message, a view into `buffer_`; nothing if it is incomplete.
    std::optional<std::string_view> next_message();
    bool read();
    bool send(std::string_view message);

    StepDispatcher& dispatcher_;
    int socket_;
    std::size_t max_bytes_;
    std::vector<char> buffer_;  // unread bytes are those from `begin_` to `end_`
    std::size_t begin_ = 0, end_ = 0;
    std::size_t wanted_ = 0;  // bytes of the incomplete message, its length field included
};

}  // namespace suffixsvc
