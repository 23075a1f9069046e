// One connection of the direct socket (docs/protocol.md): what the desk can answer never leaves this loop.
//
//   socket ──frames──> desk ──> socket
//                       │ what it cannot answer: to whoever called next()
//
// Behind a decode step of tens of milliseconds everything is cold, an interpreter most of all; here a step
// passes none on the service's side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "desk.h"

namespace suffixsvc {

// Something came that is not to be answered here.
struct Unanswered {
    enum class Kind { message, end, too_long };
    Kind kind = Kind::end;
    std::string message;                            // a whole one
    std::vector<std::optional<std::string>> items;  // of it, what was answered: see DeskReply
    std::size_t length = 0;                         // too_long: what it would have had
};

// Not thread-safe. The socket, which must block, stays the caller's.
class DeskStream {
  public:
    // `most`: bytes of a message.
    DeskStream(Desk& desk, int socket, std::size_t most);
    DeskStream(const DeskStream&) = delete;
    DeskStream& operator=(const DeskStream&) = delete;

    // Reads and answers until something comes that the desk cannot answer, or the end, which a socket that
    // fails is too. What follows a message that is too long cannot be read any more.
    Unanswered next();

  private:
    // The next whole message, within `held_`; nothing while there is none.
    std::optional<std::string_view> take();
    bool read();
    void make_room();
    bool send(std::string_view message);

    Desk& desk_;
    int socket_;
    std::size_t most_;
    std::vector<char> held_;  // what came and was not taken yet lies from `begin_` to `end_`
    std::size_t begin_ = 0, end_ = 0;
    std::size_t wanted_ = 0;  // bytes of the message that is not complete, its length included
};

}  // namespace suffixsvc
