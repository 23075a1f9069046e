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
    const std::uint32_t before = rest().tokens;
    if (at_ >= 0) root_path_ = nodes_[static_cast<std::size_t>(at_)].path;
    std::vector<Node> last;
    std::vector<std::size_t> same;  // by token of the draft: the node of the last one with the same path
    if (!nodes_.empty()) {
        last.swap(nodes_);
        nodes_.reserve(draft.size());
        same.reserve(draft.size());
    }
    const std::size_t none = last.size();
    std::uint32_t kept = 0;
    for (const DraftToken& token : draft) {
        const auto parent = static_cast<std::size_t>(token.parent);
        const Path path = extend(token.parent < 0 ? root_path_ : nodes_[parent].path, token.token);
        bool open = token.source == 1 && (unanswered_.empty() || !unanswered_.contains(path));
        if (none > 0) {
            std::size_t i = none;
            if (token.parent < 0 || same[parent] < none) {
                const std::int32_t above = token.parent < 0 ? at_ : static_cast<std::int32_t>(same[parent]);
                i = static_cast<std::size_t>(above + 1);
                while (i < none && (last[i].parent != above || last[i].token != token.token)) ++i;
            }
            same.push_back(i);
            if (i < none && last[i].open) {
                open = true;
                last[i].open = false;
                ++kept;
            }
        }
        nodes_.push_back({token.token, token.parent, token.p, open, false, path, {}});
    }
    if (kept == before) return kept;
    std::unordered_set<Path> left;
    for (Node& node : last) {
        node.follows =
            node.parent == at_ || (node.parent >= 0 && last[static_cast<std::size_t>(node.parent)].follows);
        if (node.follows && node.open) left.insert(node.path);
    }
    if (unanswered_.size() + left.size() > kMaxUnanswered) unanswered_.clear();
    unanswered_.merge(left);
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
        if (next == nodes_.size()) {  // the draft as a whole is answered
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
