// Session::draft: explores the most probable continuations and cuts the draft where it stops paying.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

#include "draft/session/session.h"

namespace suffixsvc {

namespace {

// The minimum gain of a drafted token, in multiples of the running gain per cost. Greater than one, as
// accepting a token is worth less than a mean token: the next token is often as easy to draft in the next
// step. (Measured: 1.2 gained 0.1, 0.4 and 0.5 % at costs of 0.01, 0.05 and 0.2 over twelve logs, 1.6 lost.)
// It does not apply where a token costs less in a longer draft than alone: there it would cut off the end
// that made the draft pay. (On the curve of a 1.5B model on two cores 1.0 gained 1.3 % against 1.2, 0.3 %
// against 1.1 and 0.5 % against 0.9.)
constexpr double kGainMargin = 1.2;
constexpr int kTreeWidth = 3;             // candidates considered per context
constexpr std::size_t kTreeChildren = 4;  // maximum branches of one node

}  // namespace

std::size_t DraftBounds::longest(std::uint32_t match_len, std::size_t limit) const {
    constexpr double kRounding = 1e-6;  // 0.1 * 30 must be three
    const double bound = std::floor(match_factor * match_len + match_offset + kRounding);
    if (!(bound >= 1.0)) return 0;
    if (bound >= static_cast<double>(limit)) return limit;
    return std::min(limit, static_cast<std::size_t>(bound) + extra_tokens);
}

// A session that drafts for the first time starts from the gain of sessions with similar costs.
void Session::apply_cost_curve(const CostCurve& cost, std::size_t limit) {
    slope_ = std::numeric_limits<double>::infinity();
    for (std::size_t w = 1; w <= limit; ++w)
        slope_ = std::min(slope_, (cost[w] - cost[0]) / static_cast<double>(w));
    slope_ = std::max(0.0, slope_);
    const double alone = cost[1] - cost[0];
    const double cheaper = alone > slope_ ? 1.0 - slope_ / alone : 0.0;
    margin_ = 1.0 + (kGainMargin - 1.0) * std::max(0.0, 1.0 - 3.0 * cheaper);
    const std::uint32_t paid = Learner::cost_class(slope_);
    if (cost_class_ == kNoCostClass) std::tie(tokens_, cost_) = learner_->gain(paid);
    cost_class_ = paid;
}

void Session::learn_proposed(std::span<const Token> truth) {
    // A proposed token is judged once, if all tokens before it in its path were accepted.
    const std::size_t end = written_since_ + truth.size();
    for (Proposed& p : proposed_) {
        const std::int32_t before = p.parent < 0 ? 0 : proposed_[static_cast<std::size_t>(p.parent)].depth;
        const auto at = static_cast<std::size_t>(before);
        if (before < 0 || at < written_since_ || at >= end) continue;
        const bool right = truth[at - written_since_] == p.token;
        learner_->learn_final(p.set, p.logits, p.p, right);
        if (right) p.depth = before + 1;
    }
    written_since_ = end;
}

std::vector<DraftToken> Session::draft(std::size_t max_tokens, const CostCurve& cost, Shape shape,
                                       const DraftBounds& bounds, DraftSummary* summary) {
    std::scoped_lock lock(mutex_);
    DraftSummary unread;
    DraftSummary& about = summary ? *summary : unread;
    about = {.miss = DraftMiss::limit};
    proposed_.clear();
    written_since_ = 0;
    if (cost.empty() || max_tokens == 0 || ended_) return {};
    if (!may_draft()) {
        about.miss = DraftMiss::off;
        return {};
    }
    std::size_t limit = std::min(max_tokens, cost.size() - 1);
    if (limit == 0) return {};
    apply_cost_curve(cost, limit);
    const double gain = margin_ * tokens_ / cost_;
    // A token whose path is less likely than the cheapest step of the curve can never pay.
    const double floor = std::max({0.005, gain * slope_, bounds.min_path_probability});

    struct Open {
        double path;
        std::int32_t proposed;  // index in proposed_
        std::int32_t parent;    // index of its parent in chosen
        bool operator<(const Open& o) const { return path != o.path ? path < o.path : proposed > o.proposed; }
    };
    struct Chosen {
        DraftToken out;
        double path;
        View view;
        Predictions predictions;  // predictions of the evidence at view
        std::int32_t proposed;
        std::uint32_t depth;
    };
    constexpr std::size_t kReserved = 32;  // nodes that memory is reserved for
    std::vector<Chosen> chosen;
    chosen.reserve(std::min(limit, kReserved));
    std::vector<DraftToken> candidate_of;  // parallel to proposed_
    candidate_of.reserve(kReserved);
    std::vector<Open> opened;
    opened.reserve(kReserved);
    std::priority_queue<Open> open(std::less<Open>(), std::move(opened));
    const EpochGuard guard;
    sync_cursors({});

    auto expand = [&](const View& view, double path, std::int32_t parent_chosen, std::int32_t parent_proposed,
                      std::uint32_t depth, Evidence& found) {
        collect(sources_, view, *learner_, shape == Shape::tree ? kTreeWidth : kChainWidth, found);
        const std::size_t branches = shape == Shape::tree ? kTreeChildren : 1;
        float rest = 1.f;
        for (std::size_t r = 0; r < std::min(branches, found.candidates.size()); ++r) {
            const Candidate& c = found.best(r);
            const std::uint32_t set = Learner::final_set(depth, static_cast<std::uint32_t>(r), view_.history);
            const float own = learner_->final(set, c.logits);
            const float p = std::min(own, rest);
            rest -= p;
            proposed_.push_back(Proposed{parent_proposed, c.token, set, c.logits, own});
            candidate_of.push_back(DraftToken{c.token, parent_chosen, p, c.source, c.match_len});
            if (path * static_cast<double>(p) < floor) continue;
            open.push(Open{path * static_cast<double>(p), static_cast<std::int32_t>(proposed_.size() - 1),
                           parent_chosen});
        }
    };

    expand(view_, 1.0, -1, -1, 0, root_);
    root_known_ = true;
    about.miss = candidate_of.empty() ? DraftMiss::no_context : DraftMiss::cost;
    if (!open.empty())
        limit = bounds.longest(candidate_of[static_cast<std::size_t>(open.top().proposed)].match_len, limit);
    if (limit == 0) about.miss = DraftMiss::limit;
    while (!open.empty() && chosen.size() < limit) {
        const Open best = open.top();
        open.pop();
        const DraftToken token = candidate_of[static_cast<std::size_t>(best.proposed)];
        const Chosen* parent = best.parent < 0 ? nullptr : &chosen[static_cast<std::size_t>(best.parent)];
        Chosen next{token, best.path,     parent ? parent->view : view_,
                    {},    best.proposed, parent ? parent->depth + 1 : 1};
        if (chosen.size() + 1 < limit) {
            advance(sources_, next.view, parent ? parent->predictions : root_.predictions, token.token);
            expand(next.view, next.path, static_cast<std::int32_t>(chosen.size()), next.proposed, next.depth,
                   scratch_);
            next.predictions = scratch_.predictions;
        }
        chosen.push_back(next);
    }

    // The prefix that maximises expected tokens minus their cost at the running gain. Tokens are chosen in
    // descending path probability, so every prefix is the best draft of its size.
    std::size_t take = 0;
    double expected = 0.0, best = 0.0;
    for (std::size_t n = 1; n <= chosen.size(); ++n) {
        expected += chosen[n - 1].path;
        const double value = expected - gain * (cost[n] - cost[0]);
        if (value > best) {
            best = value;
            take = n;
            about = {.miss = DraftMiss::none, .expected = expected};
        }
    }
    // Records which texts the draft was taken from: per branch, the last token that a namespace provided.
    std::vector<bool> recorded(take);
    for (std::size_t i = take; i-- > 0;) {
        const DraftToken& token = chosen[i].out;
        const auto parent = static_cast<std::size_t>(token.parent);
        if (token.source == 1 && !recorded[i]) {
            record_use(sources_, token.parent < 0 ? view_ : chosen[parent].view, token.token);
            recorded[i] = true;
        }
        if (token.parent >= 0 && recorded[i]) recorded[parent] = true;
    }
    std::vector<DraftToken> out;
    out.reserve(take);
    for (std::size_t i = 0; i < take; ++i) out.push_back(chosen[i].out);
    update_held_bytes();
    return out;
}

}  // namespace suffixsvc
