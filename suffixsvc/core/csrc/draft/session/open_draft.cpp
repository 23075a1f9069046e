#include "draft/session/open_draft.h"

namespace suffixsvc {

namespace {

// Unanswered tokens of one position that are remembered: of more, those of older drafts count again.
constexpr std::size_t kMaxUnanswered = 512;

// The hash of a path with one more token (splitmix64).
std::uint64_t extend(std::uint64_t path, Token token) {
    std::uint64_t h = (path ^ static_cast<std::uint32_t>(token)) + 0x9E3779B97F4A7C15ull;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ h >> 27) * 0x94D049BB133111EBull;
    return h ^ h >> 31;
}

}  // namespace

const OpenDraft::Below& OpenDraft::rest() const {
    return at_ < 0 ? root_ : nodes_[static_cast<std::size_t>(at_)].below;
}

// Of the tokens that were appended after the draft.
ProbeChange OpenDraft::agreed() const {
    return {.matched = matched_, .expected = root_.matches - rest().matches};
}

// Nothing is open, and nothing remembered.
void OpenDraft::reset() {
    nodes_.clear();
    root_ = {};
    root_path_ = 0;
    at_ = -1;
    matched_ = 0;
    if (!unanswered_.empty()) unanswered_ = {};
}

ProbeChange OpenDraft::leave() {
    ProbeChange change = agreed();
    change.unanswered = rest().tokens;
    change.open = -static_cast<std::int64_t>(rest().tokens);
    reset();
    return change;
}

// The draft's nodes replace those of the last one. Returns how many were open in that; the others that were
// become unanswered.
std::uint32_t OpenDraft::replace(const std::vector<DraftToken>& draft) {
    std::unordered_set<Path> open;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        Node& node = nodes_[i];
        node.follows =
            node.parent == at_ || (node.parent >= 0 && nodes_[static_cast<std::size_t>(node.parent)].follows);
        if (node.follows && node.open) open.insert(node.path);
    }
    if (at_ >= 0) root_path_ = nodes_[static_cast<std::size_t>(at_)].path;
    nodes_.clear();
    std::uint32_t kept = 0;
    for (const DraftToken& token : draft) {
        const Path above =
            token.parent < 0 ? root_path_ : nodes_[static_cast<std::size_t>(token.parent)].path;
        const Path path = extend(above, token.token);
        const bool was_open = open.erase(path) > 0;
        kept += was_open;
        const bool shared = token.source == 1 && !unanswered_.contains(path);
        nodes_.push_back({token.token, token.parent, token.p, was_open || shared, false, path, {}});
    }
    if (unanswered_.size() + open.size() > kMaxUnanswered) unanswered_.clear();
    unanswered_.merge(open);
    return kept;
}

ProbeChange OpenDraft::offer(const std::vector<DraftToken>& draft, std::size_t position) {
    ProbeChange change = position == position_ ? agreed() : leave();
    position_ = position;
    const std::uint32_t before = rest().tokens;
    const std::uint32_t kept = replace(draft);
    root_ = {};
    at_ = -1;
    matched_ = 0;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
        const Node& node = nodes_[i];
        const std::uint32_t own = node.open ? 1 : 0;
        Below& above = node.parent < 0 ? root_ : nodes_[static_cast<std::size_t>(node.parent)].below;
        above.tokens += own + node.below.tokens;
        above.matches += static_cast<double>(node.p) * (own + node.below.matches);
    }
    if (root_.tokens == 0) nodes_.clear();
    change.drafts = root_.tokens > 0 ? 1 : 0;
    change.drafted = root_.tokens - kept;
    change.unanswered += before - kept;
    change.open += static_cast<std::int64_t>(root_.tokens) - before;
    return change;
}

ProbeChange OpenDraft::answer(std::span<const Token> tokens, std::size_t position) {
    if (nodes_.empty()) return {};
    if (position != position_) return leave();
    const std::uint32_t before = rest().tokens;
    for (const Token token : tokens) {
        auto next = static_cast<std::size_t>(at_ + 1);
        while (next < nodes_.size() && (nodes_[next].parent != at_ || nodes_[next].token != token)) ++next;
        if (next == nodes_.size() || rest().tokens == 0) {  // the draft as a whole is answered
            const ProbeChange change{
                .matched = matched_, .expected = root_.matches, .open = -static_cast<std::int64_t>(before)};
            reset();
            return change;
        }
        if (nodes_[next].open) ++matched_;
        at_ = static_cast<std::int32_t>(next);
        ++position_;
    }
    return {.open = static_cast<std::int64_t>(rest().tokens) - static_cast<std::int64_t>(before)};
}

}  // namespace suffixsvc
