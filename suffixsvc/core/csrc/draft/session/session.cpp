#include "draft/session/session.h"

#include <algorithm>
#include <stdexcept>

namespace suffixsvc {

namespace {

// Bounds of the reported cost of a step: the gain is shared with other sessions, so that one wrong report
// must not spoil it.
constexpr double kMinStepCost = 1e-3, kMaxStepCost = 256.0;
// longer additions are looked up instead of advancing token by token
constexpr std::size_t kMaxAdvanced = 256;
constexpr std::uint32_t kLocalContext = 64;

// In the place of a namespace whose drafting is off. Its cursors are never those of another index: their
// epoch is set to kNoEpoch when indexes are exchanged.
const Index& empty_index() {
    static const Index& index = *new Index(kLocalContext, false);  // also for sessions that outlive statics
    return index;
}
constexpr std::uint64_t kNoEpoch = 0;  // Index::epoch() is never 0

}  // namespace

Session::Session(std::shared_ptr<Index> own, std::vector<std::shared_ptr<Index>> reads,
                 std::shared_ptr<Learner> learner, std::uint32_t writer, std::uint32_t tail_tokens)
    : own_(std::move(own)), learner_(std::move(learner)), writer_(writer), tail_tokens_(tail_tokens) {
    if (writer & kManyWriters) throw std::invalid_argument("writer must be below 2**31");
    if (own_) reads.insert(reads.begin(), own_);
    local_.emplace(kLocalContext, false);
    sources_.writer = writer;
    set_namespaces(std::move(reads));
    view_.run.fill(0);
    local_end_.epoch = local_->epoch();
    update_held_bytes();
}

// Duplicates are left out. All cursors have to be looked up afterwards.
void Session::set_namespaces(std::vector<std::shared_ptr<Index>> namespaces) {
    std::vector<std::shared_ptr<Index>> distinct;
    for (auto& each : namespaces)
        if (std::find(distinct.begin(), distinct.end(), each) == distinct.end())
            distinct.push_back(std::move(each));
    if (distinct.size() > kMaxNamespaces)
        throw std::invalid_argument("namespaces must be at most 8, the own one included");
    namespaces_ = std::move(distinct);
    sources_.indexes.assign(1, &*local_);
    for (const auto& each : namespaces_) sources_.indexes.push_back(each.get());
    epochs_.assign(namespaces_.size(), kNoEpoch);
    sealed_ = {};
    sources_.sealed = nullptr;
}

void Session::read_from(std::vector<std::shared_ptr<Index>> namespaces, std::shared_ptr<Learner> learner) {
    const std::scoped_lock lock(mutex_);
    if (ended_) return;
    set_namespaces(std::move(namespaces));
    learner_ = std::move(learner);
    const Cursor local = view_.cursors[0];
    view_.cursors = {};
    view_.cursors[0] = local;
    view_.sealed = 0;
    drop_recoveries(view_);
    // What was drafted from other namespaces is not learned from.
    proposed_.clear();
    root_known_ = false;
    update_held_bytes();
}

Session::~Session() {
    release_written();
    if (own_) own_->live.bytes -= held_;
}

// Cheap: sums of known sizes. Of text_ only the used part counts: its spare capacity is not touched.
void Session::update_held_bytes() {
    const std::size_t bytes = sizeof *this + text_.size() * sizeof(Token) +
                              (local_ ? local_->stats().bytes : 0) + runs_.capacity() * sizeof(Run) +
                              proposed_.capacity() * sizeof(Proposed) + root_.bytes() + scratch_.bytes() +
                              sealed_.bytes();
    const auto now = static_cast<std::int64_t>(bytes);
    if (own_) own_->live.bytes += now - held_;
    held_ = now;
}

void Session::release_written() {
    if (own_) own_->live.tokens -= written_;
    written_ = 0;
}

void Session::require_live() const {
    if (ended_) throw std::logic_error("the session has ended");
}

// Advances the namespace cursors over the last tokens of text_, which were just added. A cursor is looked up
// again if a removal may have invalidated it, or if that is cheaper. Requires an EpochGuard.
void Session::sync_cursors(std::span<const Token> added) {
    for (std::size_t i = 0; i < namespaces_.size(); ++i) {
        const bool drafted = namespaces_[i]->drafting.load(std::memory_order_relaxed);
        const Index& index = drafted ? *namespaces_[i] : empty_index();
        if (&index != sources_.indexes[i + 1]) {
            sources_.indexes[i + 1] = &index;
            epochs_[i] = kNoEpoch;
        }
        const std::uint64_t epoch = index.epoch();  // read before the cursor is found
        if (epochs_[i] == epoch && added.size() <= kMaxAdvanced) {
            for (Token token : added) index.advance(view_.cursors[i + 1], token);
        } else {
            view_.cursors[i + 1] = index.find(text_);
            drop_recoveries(view_);
            epochs_[i] = epoch;
            root_known_ = false;
        }
    }
    if (sealed_.refresh(std::span(sources_.indexes).subspan(1))) {
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
    const EpochGuard guard;
    sync_cursors(tokens);
    update_held_bytes();
}

void Session::add_written(std::size_t positions) {
    written_ += static_cast<std::int64_t>(positions);
    own_->live.tokens += static_cast<std::int64_t>(positions);
}

void Session::insert(Token token) {
    const bool shared = own_ && !retracted_;
    const std::size_t end = text_.size();
    if (!in_output_) {
        const std::size_t tail = end > tail_tokens_ ? end - tail_tokens_ : 0;
        runs_.push_back(Run{tail, end, end, tail, TextEnd{}});
        if (shared) {
            const std::scoped_lock lock(own_->mutex);
            TextEnd& text = runs_.back().end;
            text.epoch = own_->epoch();
            const auto before = std::span(text_).subspan(tail);
            own_->append(text, before, before.size(), writer_);
            add_written(before.size());
        }
        in_output_ = true;
    }
    Run& run = runs_.back();
    if (shared) {
        if (end > run.tail && (end - run.tail) % kMaxText == 0) {
            run.piece = end - std::min<std::size_t>(own_->max_context(), end - run.tail);
            const std::scoped_lock lock(own_->mutex);
            own_->begin_piece(run.end, std::span(text_).subspan(run.piece), writer_);
        }
        {
            const std::scoped_lock lock(own_->mutex);
            own_->append(run.end, token, true, writer_, std::span(text_).subspan(run.piece));
            add_written(1);
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
    learns = learns && may_draft();
    if (learns)
        learn_proposed(tokens);
    else
        proposed_.clear();
    for (Token token : tokens) {
        if (learns) {
            const EpochGuard guard;
            sync_cursors({});
            if (!root_known_) collect(sources_, view_, *learner_, kChainWidth, root_);
            learn(*learner_, root_, token);
            const bool expected = !root_.candidates.empty() && root_.best(0).token == token;
            record_token(sources_, view_, root_.predictions, token, expected);
        } else {
            view_.last = token;
            drop_recoveries(view_);
        }
        insert(token);
        root_known_ = false;
        const EpochGuard guard;
        sync_cursors({&token, 1});
        view_.cursors[0] = local_end_.context;
    }
    update_held_bytes();
}

void Session::record_step(double step_cost, std::size_t tokens) {
    std::scoped_lock lock(mutex_);
    step_cost = std::clamp(step_cost, kMinStepCost, kMaxStepCost);
    tokens_ = tokens_ * Learner::kGainDecay + static_cast<double>(tokens);
    cost_ = cost_ * Learner::kGainDecay + step_cost;
    if (cost_class_ != kNoCostClass)
        learner_->learn_gain(cost_class_, static_cast<double>(tokens), step_cost);
}

void Session::record_more_tokens(std::size_t tokens) {
    std::scoped_lock lock(mutex_);
    tokens_ += static_cast<double>(tokens);
    if (cost_class_ != kNoCostClass) learner_->learn_more_gain(cost_class_, static_cast<double>(tokens));
}

Session::Inspection Session::inspect(int width) {
    std::scoped_lock lock(mutex_);
    require_live();
    const EpochGuard guard;
    sync_cursors({});
    Inspection out;
    out.contexts = contexts(sources_, view_, width, scratch_);
    for (const Candidate& c : scratch_.candidates) out.candidates.push_back(c.token);
    out.predictions = scratch_.predictions;
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
    return {text_.begin() + from, text_.begin() + to};
}

std::vector<std::pair<std::size_t, std::size_t>> Session::output_runs() const {
    std::scoped_lock lock(mutex_);
    std::vector<std::pair<std::size_t, std::size_t>> out;
    for (const Run& r : runs_) out.emplace_back(r.first, r.last);
    return out;
}

// Counts a copy, so that steps of this session do not wait.
NgramCounts Session::ngrams(std::uint32_t n) const {
    constexpr std::size_t kCopied = 1 << 16;
    Index index(kLocalContext, false);
    TextEnd end;
    for (std::size_t first = 0;; first += kCopied) {
        const std::vector<Token> part = text(first, first + kCopied);
        index.append(end, part, 0, 1);
        if (part.size() < kCopied) break;
    }
    index.propagate_counts();
    return index.ngrams(n);
}

double Session::gain() const {
    std::scoped_lock lock(mutex_);
    return tokens_ / cost_;
}

std::uint64_t Session::held_bytes() const {
    return own_ ? own_->attributed_bytes(held_, written_) : static_cast<std::uint64_t>(held_.load());
}

void Session::retract() {
    const std::scoped_lock lock(mutex_);
    if (retracted_ || !own_) return;
    retracted_ = true;
    for (const Run& r : runs_)
        own_->remove(std::span(text_).subspan(r.tail, r.last - r.tail), r.first - r.tail);
    release_written();
}

void Session::end() {
    const std::scoped_lock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    release_written();
    sources_ = {};
    local_.reset();
    sealed_ = {};
    proposed_ = {};
    root_ = {};
    scratch_ = {};
    root_known_ = false;
    update_held_bytes();
}

}  // namespace suffixsvc
