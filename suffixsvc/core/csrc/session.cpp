#include "session.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <stdexcept>
#include <tuple>

namespace suffixsvc {

namespace {

// What a drafted token must earn, in running gains of what it costs. More than one, as accepting it is worth
// less than a mean token: what comes next is often as easy to draft in the next step. (Measured: 1.2 gained
// 0.1, 0.4 and 0.5 % at costs of 0.01, 0.05 and 0.2 over twelve logs, 1.6 lost.) Not where tokens are cheaper
// by the dozen than alone: there what it takes from the end of a draft is what made it worth its price. (On
// the curve of a 1.5B model on two cores 1.0 gained 1.3 % against 1.2, 0.3 % against 1.1 and 0.5 % against
// 0.9.)
constexpr double kThrift = 1.2;
constexpr int kChainWidth = 2;  // candidates considered per context
constexpr int kTreeWidth = 3;
// What a step is taken to cost at least and at most: the gain is shared with other sessions, whatever one of
// them was told.
constexpr double kLeastStepCost = 1e-3, kMostStepCost = 256.0;
constexpr std::size_t kFollowed = 256;    // longer additions are not followed token by token
constexpr std::size_t kTreeChildren = 4;  // branches of one node at most
constexpr std::uint32_t kLocalContext = 64;

}  // namespace

std::size_t DraftBounds::longest(std::uint32_t match_len, std::size_t most) const {
    constexpr double kRounding = 1e-6;  // 0.1 * 30 is three
    const double bound = std::floor(match_factor * match_len + match_offset + kRounding);
    if (!(bound >= 1.0)) return 0;
    if (bound >= static_cast<double>(most)) return most;
    return std::min(most, static_cast<std::size_t>(bound) + beyond);
}

Session::Session(std::shared_ptr<Index> own, std::vector<std::shared_ptr<Index>> reads,
                 std::shared_ptr<Learner> learner, std::uint32_t writer, std::uint32_t tail_tokens)
    : own_(std::move(own)), learner_(std::move(learner)), writer_(writer), tail_tokens_(tail_tokens) {
    if (writer & kManyWriters) throw std::invalid_argument("a writer is below 2**31");
    if (own_) namespaces_.push_back(own_);
    for (auto& r : reads)
        if (std::find(namespaces_.begin(), namespaces_.end(), r) == namespaces_.end())
            namespaces_.push_back(std::move(r));
    if (namespaces_.size() > kMostNamespaces)
        throw std::invalid_argument("too many namespaces for one session");
    local_.emplace(kLocalContext, false);
    sources_.writer = writer;
    sources_.indexes.push_back(&*local_);
    for (const auto& n : namespaces_) sources_.indexes.push_back(n.get());
    view_.run.fill(0);
    epochs_.assign(namespaces_.size(), 0);
    local_end_.epoch = local_->epoch();
    note_held();
}

Session::~Session() {
    no_longer_wrote();
    if (own_) own_->live.bytes -= held_;
}

// Cheap: a few sums of what is kept anyway. Of the text what is written: its spare room is not touched.
void Session::note_held() {
    const std::size_t bytes = sizeof *this + text_.size() * sizeof(Token) +
                              (local_ ? local_->stats().bytes : 0) + runs_.capacity() * sizeof(Run) +
                              proposed_.capacity() * sizeof(Proposed) + root_.bytes() + scratch_.bytes() +
                              sealed_.bytes();
    const auto now = static_cast<std::int64_t>(bytes);
    if (own_) own_->live.bytes += now - held_;
    held_ = now;
}

void Session::no_longer_wrote() {
    if (own_) own_->live.tokens -= wrote_;
    wrote_ = 0;
}

void Session::require_live() const {
    if (ended_) throw std::logic_error("the session has ended");
}

// Moves the namespace cursors over the last tokens of text_, those that were just added. A cursor is found
// again where removals elsewhere may have taken nodes away under it, or where that is shorter. A Reading is
// held.
void Session::catch_up(std::span<const Token> added) {
    for (std::size_t i = 0; i < namespaces_.size(); ++i) {
        const Index& index = *namespaces_[i];
        const std::uint64_t epoch = index.epoch();  // before the cursor is found
        if (epochs_[i] == epoch && added.size() <= kFollowed) {
            for (Token token : added) index.advance(view_.cursors[i + 1], token);
        } else {
            view_.cursors[i + 1] = index.find(text_);
            drop_recoveries(view_);
            epochs_[i] = epoch;
            root_known_ = false;
        }
    }
    if (sealed_.refresh(namespaces_)) {
        sources_.sealed = sealed_.parts().empty() ? nullptr : &sealed_;
        drop_recoveries(view_);
        root_known_ = false;
    }
    sealed_.begin(text_);
}

void Session::append_context(std::span<const Token> tokens) {
    std::scoped_lock lock(mutex_);
    if (tokens.empty()) return;
    require_live();
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    local_->append(local_end_, tokens, 0, 1);
    view_.cursors[0] = local_end_.context;
    in_output_ = false;
    proposed_.clear();
    root_known_ = false;
    view_.run.fill(0);
    view_.last = tokens.back();
    drop_recoveries(view_);
    const Reading reading;
    catch_up(tokens);
    note_held();
}

void Session::note_wrote(std::size_t positions) {
    wrote_ += static_cast<std::int64_t>(positions);
    own_->live.tokens += static_cast<std::int64_t>(positions);
}

void Session::insert(Token token) {
    const bool shared = own_ && !retracted_;
    const std::size_t end = text_.size();
    if (!in_output_) {
        const std::size_t tail = end > tail_tokens_ ? end - tail_tokens_ : 0;
        runs_.push_back(Run{tail, end, end, tail, TextEnd{}});
        if (shared) {
            const std::scoped_lock turn(own_->mutex);
            TextEnd& text = runs_.back().end;
            text.epoch = own_->epoch();
            const auto before = std::span(text_).subspan(tail);
            own_->append(text, before, before.size(), writer_);
            note_wrote(before.size());
        }
        in_output_ = true;
    }
    Run& run = runs_.back();
    if (shared) {
        if (end > run.tail && (end - run.tail) % kMostText == 0) {
            run.piece = end - std::min<std::size_t>(own_->max_context(), end - run.tail);
            const std::scoped_lock turn(own_->mutex);
            own_->begin_piece(run.end, std::span(text_).subspan(run.piece), writer_);
        }
        {
            const std::scoped_lock turn(own_->mutex);
            own_->append(run.end, token, true, writer_, std::span(text_).subspan(run.piece));
            note_wrote(1);
        }
        own_->populate();
    }
    text_.push_back(token);
    run.last = text_.size();
    local_->append(local_end_, token, true, 1, {});
}

void Session::append(std::span<const Token> tokens, bool learns) {
    std::scoped_lock lock(mutex_);
    require_live();
    if (learns)
        learn_proposed(tokens);
    else
        proposed_.clear();
    for (Token token : tokens) {
        if (learns) {
            const Reading reading;
            catch_up({});
            if (!root_known_) collect(sources_, view_, *learner_, kChainWidth, root_);
            learn(*learner_, root_, token);
            const bool expected = !root_.candidates.empty() && root_.best(0).token == token;
            note(sources_, view_, root_.followed, token, expected);
        } else {
            view_.last = token;
            drop_recoveries(view_);
        }
        insert(token);
        root_known_ = false;
        const Reading reading;
        catch_up({&token, 1});
        view_.cursors[0] = local_end_.context;
    }
    note_held();
}

void Session::account(double step_cost, std::size_t tokens) {
    std::scoped_lock lock(mutex_);
    step_cost = std::clamp(step_cost, kLeastStepCost, kMostStepCost);
    tokens_ = tokens_ * Learner::kGainDecay + static_cast<double>(tokens);
    cost_ = cost_ * Learner::kGainDecay + step_cost;
    if (cost_class_ != kNoCostClass)
        learner_->learn_gain(cost_class_, static_cast<double>(tokens), step_cost);
}

void Session::account_more(std::size_t tokens) {
    std::scoped_lock lock(mutex_);
    tokens_ += static_cast<double>(tokens);
    if (cost_class_ != kNoCostClass) learner_->learn_more_gain(cost_class_, static_cast<double>(tokens));
}

// A session that drafts for the first time goes on from the gain of others who pay as much.
void Session::price(const CostCurve& cost, std::size_t most) {
    slope_ = std::numeric_limits<double>::infinity();
    for (std::size_t w = 1; w <= most; ++w)
        slope_ = std::min(slope_, (cost[w] - cost[0]) / static_cast<double>(w));
    slope_ = std::max(0.0, slope_);
    const double alone = cost[1] - cost[0];
    const double cheaper = alone > slope_ ? 1.0 - slope_ / alone : 0.0;
    thrift_ = 1.0 + (kThrift - 1.0) * std::max(0.0, 1.0 - 3.0 * cheaper);
    const std::uint32_t paid = Learner::cost_class(slope_);
    if (cost_class_ == kNoCostClass) std::tie(tokens_, cost_) = learner_->gain(paid);
    cost_class_ = paid;
}

void Session::learn_proposed(std::span<const Token> truth) {
    // A proposed token is judged where everything before it in its path came true, once.
    const std::size_t end = since_ + truth.size();
    for (Proposed& p : proposed_) {
        const std::int32_t before = p.parent < 0 ? 0 : proposed_[static_cast<std::size_t>(p.parent)].depth;
        const auto at = static_cast<std::size_t>(before);
        if (before < 0 || at < since_ || at >= end) continue;
        const bool right = truth[at - since_] == p.token;
        learner_->learn_final(p.set, p.logits, p.p, right);
        if (right) p.depth = before + 1;
    }
    since_ = end;
}

std::vector<DraftToken> Session::draft(std::size_t max_tokens, const CostCurve& cost, Shape shape,
                                       const DraftBounds& bounds) {
    std::scoped_lock lock(mutex_);
    proposed_.clear();
    since_ = 0;
    if (cost.empty() || max_tokens == 0 || ended_) return {};
    std::size_t most = std::min(max_tokens, cost.size() - 1);
    if (most == 0) return {};
    price(cost, most);
    const double gain = thrift_ * tokens_ / cost_;
    // A token whose path is less likely than the cheapest step of the curve can never pay.
    const double floor = std::max({0.005, gain * slope_, bounds.least_path});

    struct Open {
        double path;
        std::int32_t proposed;  // its place in proposed_
        std::int32_t parent;    // chosen node it hangs on
        bool operator<(const Open& o) const { return path != o.path ? path < o.path : proposed > o.proposed; }
    };
    struct Chosen {
        DraftToken out;
        double path;
        View view;
        Followed followed;  // of the evidence at view
        std::int32_t proposed;
        std::uint32_t depth;
    };
    constexpr std::size_t kUsual = 32;  // memory at once for so many nodes
    std::vector<Chosen> chosen;
    chosen.reserve(std::min(most, kUsual));
    std::vector<DraftToken> candidate_of;  // parallel to proposed_
    candidate_of.reserve(kUsual);
    std::vector<Open> opened;
    opened.reserve(kUsual);
    std::priority_queue<Open> open(std::less<Open>(), std::move(opened));
    const Reading reading;
    catch_up({});

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
    if (!open.empty())
        most = bounds.longest(candidate_of[static_cast<std::size_t>(open.top().proposed)].match_len, most);
    while (!open.empty() && chosen.size() < most) {
        const Open best = open.top();
        open.pop();
        const DraftToken token = candidate_of[static_cast<std::size_t>(best.proposed)];
        const Chosen* parent = best.parent < 0 ? nullptr : &chosen[static_cast<std::size_t>(best.parent)];
        Chosen next{token, best.path,     parent ? parent->view : view_,
                    {},    best.proposed, parent ? parent->depth + 1 : 1};
        if (chosen.size() + 1 < most) {
            advance(sources_, next.view, parent ? parent->followed : root_.followed, token.token);
            expand(next.view, next.path, static_cast<std::int32_t>(chosen.size()), next.proposed, next.depth,
                   scratch_);
            next.followed = scratch_.followed;
        }
        chosen.push_back(next);
    }

    // The prefix that maximises expected tokens minus what they cost at the running gain. Chosen tokens
    // come in falling path probability, so every prefix is the best draft of its size.
    std::size_t take = 0;
    double expected = 0.0, best = 0.0;
    for (std::size_t n = 1; n <= chosen.size(); ++n) {
        expected += chosen[n - 1].path;
        const double worth = expected - gain * (cost[n] - cost[0]);
        if (worth > best) {
            best = worth;
            take = n;
        }
    }
    // Whom it was taken from: the last tokens of its branches that a namespace knew.
    std::vector<bool> noted(take);
    for (std::size_t i = take; i-- > 0;) {
        const DraftToken& token = chosen[i].out;
        const auto parent = static_cast<std::size_t>(token.parent);
        if (token.source == 1 && !noted[i]) {
            note_drafted(sources_, token.parent < 0 ? view_ : chosen[parent].view, token.token);
            noted[i] = true;
        }
        if (token.parent >= 0 && noted[i]) noted[parent] = true;
    }
    std::vector<DraftToken> out;
    out.reserve(take);
    for (std::size_t i = 0; i < take; ++i) out.push_back(chosen[i].out);
    note_held();
    return out;
}

Session::Look Session::look(int width) {
    std::scoped_lock lock(mutex_);
    require_live();
    const Reading reading;
    catch_up({});
    Look out;
    out.contexts = contexts(sources_, view_, width, scratch_);
    for (const Candidate& c : scratch_.candidates) out.candidates.push_back(c.token);
    out.followed = scratch_.followed;
    return out;
}

std::int64_t Session::first_difference(std::size_t at, std::span<const Token> tokens) const {
    std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < tokens.size() && at + i < text_.size(); ++i)
        if (text_[at + i] != tokens[i]) return static_cast<std::int64_t>(at + i);
    return -1;
}

bool Session::ends_with(std::span<const Token> tokens) const {
    std::scoped_lock lock(mutex_);
    return tokens.size() <= text_.size() && std::equal(tokens.rbegin(), tokens.rend(), text_.rbegin());
}

std::size_t Session::length() const {
    std::scoped_lock lock(mutex_);
    return text_.size();
}

std::vector<Token> Session::text(std::size_t from, std::size_t to) const {
    std::scoped_lock lock(mutex_);
    to = std::min(to, text_.size());
    if (from >= to) return {};
    return {text_.begin() + static_cast<std::ptrdiff_t>(from),
            text_.begin() + static_cast<std::ptrdiff_t>(to)};
}

std::vector<std::pair<std::size_t, std::size_t>> Session::output_runs() const {
    std::scoped_lock lock(mutex_);
    std::vector<std::pair<std::size_t, std::size_t>> out;
    for (const Run& r : runs_) out.emplace_back(r.first, r.last);
    return out;
}

// From a copy: steps of this session do not wait until all is counted.
void Session::ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const {
    constexpr std::size_t kCopied = 1 << 16;
    Index index(kLocalContext, false);
    TextEnd end;
    for (std::size_t first = 0;; first += kCopied) {
        const std::vector<Token> part = text(first, first + kCopied);
        index.append(end, part, 0, 1);
        if (part.size() < kCopied) break;
    }
    index.settle();
    index.ngrams(n, tokens, counts);
}

double Session::gain() const {
    std::scoped_lock lock(mutex_);
    return tokens_ / cost_;
}

std::uint64_t Session::held_bytes() const {
    return own_ ? own_->own_and_share(held_, wrote_) : static_cast<std::uint64_t>(held_.load());
}

void Session::retract() {
    const std::scoped_lock lock(mutex_);
    if (retracted_ || !own_) return;
    retracted_ = true;
    for (const Run& r : runs_)
        own_->remove(std::span(text_).subspan(r.tail, r.last - r.tail), r.first - r.tail);
    no_longer_wrote();
}

void Session::end() {
    const std::scoped_lock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    no_longer_wrote();
    sources_ = {};
    local_.reset();
    sealed_ = {};
    proposed_ = {};
    root_ = {};
    scratch_ = {};
    root_known_ = false;
    note_held();
}

}  // namespace suffixsvc
