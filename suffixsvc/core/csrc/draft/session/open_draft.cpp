#include "draft/session/open_draft.h"

#include <algorithm>

namespace suffixsvc {

std::uint32_t OpenDraft::open_tokens() const {
    if (nodes_.empty()) return 0;
    return at_ < 0 ? root_.tokens : nodes_[static_cast<std::size_t>(at_)].below.tokens;
}

// What was appended after the draft, as far as it agrees; then none is open.
ProbeChange OpenDraft::settle(bool contradicted) {
    if (nodes_.empty()) return {};
    const Below& rest = at_ < 0 ? root_ : nodes_[static_cast<std::size_t>(at_)].below;
    ProbeChange change{.matched = matched_, .expected = root_.matches};
    if (!contradicted) {
        change.expected -= rest.matches;
        change.unanswered = rest.tokens;
    }
    change.open = -static_cast<std::int64_t>(rest.tokens);
    nodes_.clear();
    return change;
}

ProbeChange OpenDraft::leave() { return settle(false); }

ProbeChange OpenDraft::offer(const std::vector<DraftToken>& draft, std::size_t position) {
    const bool again = position == position_;
    ProbeChange change = settle(false);
    root_ = {};
    at_ = -1;
    position_ = position;
    matched_ = 0;
    for (const DraftToken& token : draft)
        nodes_.push_back(Node{token.token, token.parent, token.p, token.source == 1, {}});
    for (std::size_t i = nodes_.size(); i-- > 0;) {
        const Node& node = nodes_[i];
        const std::uint32_t own = node.shared ? 1 : 0;
        Below& above = node.parent < 0 ? root_ : nodes_[static_cast<std::size_t>(node.parent)].below;
        above.tokens += own + node.below.tokens;
        above.matches += static_cast<double>(node.p) * (own + node.below.matches);
    }
    if (root_.tokens == 0) nodes_.clear();
    const std::uint64_t repeated = again ? std::min<std::uint64_t>(change.unanswered, root_.tokens) : 0;
    change.drafts = root_.tokens > 0 ? 1 : 0;
    change.drafted = root_.tokens - repeated;
    change.unanswered -= repeated;
    change.open += root_.tokens;
    return change;
}

ProbeChange OpenDraft::answer(std::span<const Token> tokens, std::size_t position) {
    if (nodes_.empty()) return {};
    if (position != position_) return leave();
    const std::uint32_t before = open_tokens();
    for (const Token token : tokens) {
        auto next = static_cast<std::size_t>(at_ + 1);
        while (next < nodes_.size() && (nodes_[next].parent != at_ || nodes_[next].token != token)) ++next;
        if (next == nodes_.size() || open_tokens() == 0) {
            ProbeChange change = settle(true);
            change.open = -static_cast<std::int64_t>(before);
            return change;
        }
        if (nodes_[next].shared) ++matched_;
        at_ = static_cast<std::int32_t>(next);
        ++position_;
    }
    return {.open = static_cast<std::int64_t>(open_tokens()) - static_cast<std::int64_t>(before)};
}

}  // namespace suffixsvc
