#include "draft/evidence/sealed_segments.h"

#include <algorithm>
#include <limits>

#include "draft/evidence/contexts.h"

namespace suffixsvc {

namespace {

constexpr std::size_t kExtraFollowers = 2;  // followers gathered for each context beyond the requested width
constexpr std::size_t kRetainedPositions = 64;  // positions whose memory is retained between drafts
// Levels used of a view: the first may share its slot with the second, and no other two do.
constexpr std::uint32_t kUsedLevels = kEvaluatedSlots + 1;
constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

// Index of the level that covers contexts of `len` tokens; -1: none.
int covering(const SegmentView& view, std::uint32_t len) {
    int level = -1;
    while (level + 1 < static_cast<int>(view.size) &&
           view.levels[static_cast<std::size_t>(level + 1)].len >= len)
        ++level;
    return level;
}

}  // namespace

bool SealedSegments::refresh(std::span<const Index* const> namespaces) {
    versions_.resize(namespaces.size());
    lists_.resize(namespaces.size());
    bool changed = false;
    for (std::size_t i = 0; i < namespaces.size(); ++i)
        if (namespaces[i]->segments.version() != versions_[i]) {
            lists_[i] = namespaces[i]->segments.get(versions_[i]);
            changed = true;
        }
    if (!changed) return false;
    parts_.clear();
    namespaces_with_ = 0;
    for (std::size_t i = 0; i < namespaces.size(); ++i) {
        if (!lists_[i]) continue;
        const std::size_t first = parts_.size();
        for (const auto& segment : *lists_[i]) {
            SealedPart& part = parts_.emplace_back();
            part.segment = segment;
            part.index = i + 1;
            part.depth = std::min<std::size_t>(kSegmentContext, namespaces[i]->max_context());
        }
        std::stable_sort(parts_.begin() + first, parts_.end(), [](const SealedPart& a, const SealedPart& b) {
            return a.segment->header().last_lsn > b.segment->header().last_lsn;
        });
        if (parts_.size() > first) namespaces_with_ |= 1u << (i + 1);
    }
    positions_.assign(1, Position{0, -1, false});
    views_.assign(parts_.size(), {});
    before_.assign(parts_.size(), {});
    has_before_ = false;
    return true;
}

void SealedSegments::begin(std::span<const Token> text) {
    if (parts_.empty()) return;
    if (text.size() != length_) {
        has_before_ = positions_[0].queried && text.size() == length_ + 1;
        if (has_before_) std::copy_n(views_.begin(), parts_.size(), before_.begin());
        positions_[0].queried = false;
    }
    // The longest context may have been forgotten since.
    std::uint64_t forgotten = 0;
    for (const SealedPart& part : parts_) forgotten += part.segment->forgotten();
    if (forgotten != forgotten_) positions_[0].queried = false;
    forgotten_ = forgotten;
    text_ = text;
    length_ = text.size();
    positions_.resize(1);
    views_.resize(parts_.size());
    if (views_.capacity() > 2 * kRetainedPositions * parts_.size()) {
        positions_.shrink_to_fit();
        views_.shrink_to_fit();
    }
}

std::uint32_t SealedSegments::step(std::uint32_t position, Token token) {
    positions_.push_back(Position{position, token, false});
    views_.resize(views_.size() + parts_.size());
    return static_cast<std::uint32_t>(positions_.size() - 1);
}

// The last tokens before a position, newest last.
std::span<const Token> SealedSegments::context_of(std::uint32_t position) {
    std::size_t first = context_.size();
    for (; position != 0 && first > 0; position = positions_[position].before)
        context_[--first] = positions_[position].token;
    const std::size_t more = std::min(first, text_.size());
    first -= more;
    std::ranges::copy(text_.last(more), context_.begin() + first);
    return std::span(context_).subspan(first);
}

void SealedSegments::query(std::uint32_t position, std::size_t width) {
    width_ = std::min(width + kExtraFollowers, kMaxWidth);
    Position& at = positions_[position];
    if (!at.queried) {
        const std::span<const Token> context = context_of(position);
        for (std::size_t p = 0; p < parts_.size(); ++p) {
            const SegmentView* before = nullptr;
            if (position != 0 && positions_[at.before].queried)
                before = &views_[at.before * parts_.size() + p];
            else if (position == 0 && has_before_)
                before = &before_[p];
            parts_[p].segment->find(context.last(std::min(context.size(), parts_[p].depth)), kOrders,
                                    views_[position * parts_.size() + p], before);
        }
        at.queried = true;
    }
    for (std::size_t p = 0; p < parts_.size(); ++p) {
        SealedPart& part = parts_[p];
        part.view = views_[position * parts_.size() + p];
        part.view.size = std::min(part.view.size, kUsedLevels);
        part.segment->gather(part.view, width_, part.evidence);
        part.level_of.fill(-1);
    }
}

void SealedSegments::fill_slots(std::size_t index, const MatchLevels& hot, std::span<ContextSlot> slots) {
    const auto here = [&](auto f) {
        for (std::size_t p = 0; p < parts_.size(); ++p)
            if (parts_[p].index == index) f(parts_[p]);
    };
    for (std::size_t k = 0; k < kOrderCount; ++k) {
        const auto order = static_cast<std::uint32_t>(kOrders[k]);
        const MatchLevels::Step& step = hot.steps[k];
        std::uint32_t len = step.len > 0 ? step.len : kNever;
        here([&](SealedPart& part) {
            const int level = covering(part.view, order);
            part.level_of[k] = static_cast<std::int8_t>(level);
            if (level >= 0) len = std::min(len, part.view.levels[static_cast<std::size_t>(level)].len);
        });
        if (len == kNever) continue;
        if (k + 1 < kOrderCount && len >= static_cast<std::uint32_t>(kOrders[k + 1])) {
            // It also covers a larger order, and takes that order's slot.
            here([&](SealedPart& part) { part.level_of[k] = -1; });
            continue;
        }
        ContextSlot& slot = slots[k];
        const bool first = slot.empty();
        Token newest = -1;
        if (step.id != kNoNode && slot.num_nodes < kNodesPerSlot) {
            slot.nodes[slot.num_nodes++] = NodeRef{hot.index, step.id};
            slot.match_len = std::max(slot.match_len, len);
            newest = hot.index->node(step.id).recent;
        }
        Token sealed = -1;
        std::uint64_t sealed_age = 0;
        here([&](SealedPart& part) {
            if (part.level_of[k] < 0) return;
            slot.sealed = true;
            slot.match_len = std::max(slot.match_len, len);
            const std::uint32_t position = part.evidence.newest[static_cast<std::size_t>(part.level_of[k])];
            if (!first || newest >= 0 || position == 0) return;
            const std::uint64_t age = part.segment->age_at(position);
            if (sealed >= 0 && age <= sealed_age) return;
            sealed = part.segment->token_at(position);
            sealed_age = age;
        });
        if (first) slot.newest = newest >= 0 ? newest : sealed;
    }
}

void SealedSegments::update_match(Match& match) const {
    std::uint64_t age = 0;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
        const SegmentView& view = parts_[p].view;
        for (std::size_t r = 0; r < view.size && view.levels[r].len >= std::max(kMinMatch, match.len); ++r) {
            const std::uint32_t position = parts_[p].evidence.newest[r];
            if (position == 0) continue;  // forgotten since it was found
            const std::uint64_t its_age = parts_[p].segment->age_at(position);
            const bool equal = view.levels[r].len == match.len;
            if (equal && (match.index != Recovery::kSealed || its_age <= age)) break;
            const Token token = parts_[p].segment->token_at(position);
            if (token < 0) continue;
            match = Match{token, view.levels[r].len, Recovery::kSealed,
                          SealedAt{static_cast<std::uint32_t>(p), position}};
            age = its_age;
            break;
        }
    }
}

void SealedSegments::votes(Token token, std::array<std::uint32_t, kOrderCount>& out) const {
    out.fill(0);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
        const SealedPart& part = parts_[p];
        const SegmentEvidence& e = part.evidence;
        const SegmentView& view = part.view;
        if (view.size == 0) continue;
        std::size_t c = 0;
        while (c < e.size && e.token[c] != token) ++c;
        std::array<std::uint32_t, kMaxLevels> looked_up;
        if (c == e.size) {
            // All followers of the last level are candidates, unless there are many.
            if (e.strongest_size[view.size - 1] < width_) continue;
            part.segment->votes(view, token, looked_up);
        }
        const auto& votes = c < e.size ? e.votes[c] : looked_up;
        for (std::size_t k = 0; k < kOrderCount; ++k)
            if (part.level_of[k] >= 0) out[k] += votes[static_cast<std::size_t>(part.level_of[k])];
    }
}

}  // namespace suffixsvc
