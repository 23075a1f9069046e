// What of a session's last draft is open: its tokens of shared text that the next tokens may still agree
// with. A token is counted once for each text that it is offered after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "draft/session/probe_meter.h"
#include "draft/session/session.h"

namespace suffixsvc {

class OpenDraft {
  public:
    // A draft is offered at this position. What was open of the last one stays unanswered, except the paths
    // that this one has at the same position. Paths that were unanswered there before are not counted again.
    ProbeChange offer(const std::vector<DraftToken>& draft, std::size_t position);
    // Tokens are appended at this position.
    ProbeChange answer(std::span<const Token> tokens, std::size_t position);
    // Nothing more is appended.
    ProbeChange leave();

  private:
    // Hash of the tokens of a path: of those since unanswered_ was empty, so that it stays valid while tokens
    // are appended that the drafts have.
    using Path = std::uint64_t;
    struct Below {  // the open tokens that follow a token of the draft, or its root
        std::uint32_t tokens = 0;
        double matches = 0.0;  // expected number of them that match, if the token did
    };
    struct Node {
        Token token;
        std::int32_t parent;
        float p;
        bool open;     // of shared text, and not unanswered before
        bool follows;  // at_; set by replace()
        Path path;
        Below below;
    };
    const Below& rest() const;
    ProbeChange agreed() const;
    void reset();
    std::uint32_t replace(const std::vector<DraftToken>& draft);

    std::vector<Node> nodes_;  // of the draft; empty: none is open
    Below root_;
    Path root_path_ = 0;
    std::int32_t at_ = -1;       // node that the tokens agree up to
    std::size_t position_ = 0;   // of the token after it
    std::uint64_t matched_ = 0;  // open tokens among those it agrees with
    // Paths that drafts at this position had and that stayed unanswered, at most kMaxUnanswered.
    std::unordered_set<Path> unanswered_;
};

}  // namespace suffixsvc
