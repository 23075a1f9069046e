// What of a session's last draft is open: its tokens of shared text that the next tokens may still agree
// with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "draft/session/probe_meter.h"
#include "draft/session/session.h"

namespace suffixsvc {

class OpenDraft {
  public:
    // A draft is offered at this position. What was open of the last one stays unanswered, as far as it is
    // more than this one has at the same position: a draft that is asked for again discloses nothing new.
    ProbeChange offer(const std::vector<DraftToken>& draft, std::size_t position);
    // Tokens are appended at this position.
    ProbeChange answer(std::span<const Token> tokens, std::size_t position);
    // Nothing more is appended.
    ProbeChange leave();

  private:
    struct Below {  // the tokens of shared text that follow a token of the draft, or its root
        std::uint32_t tokens = 0;
        double matches = 0.0;  // expected number of them that match, if the token did
    };
    struct Node {
        Token token;
        std::int32_t parent;
        float p;
        bool shared;
        Below below;
    };
    std::uint32_t open_tokens() const;
    ProbeChange settle(bool contradicted);

    std::vector<Node> nodes_;  // of the draft; empty: none is open
    Below root_;
    std::int32_t at_ = -1;       // node that the tokens agree up to
    std::size_t position_ = 0;   // of the token after it
    std::uint64_t matched_ = 0;  // tokens of shared text among those it agrees with
};

}  // namespace suffixsvc
