#include "draft/session/session_stepper.h"

#include <algorithm>

#include "base/sync/parallel_for.h"

namespace suffixsvc {

namespace {

// Fewer steps than this finish before a sleeping thread wakes up.
constexpr std::size_t kMinParallelSteps = 3;

std::shared_ptr<const CostCurve> plain_step() {
    static const auto curve = std::make_shared<const CostCurve>(CostCurve{1.0});
    return curve;
}

// A longer time from a draft to its answer is a pause of the caller, not a step.
constexpr double kLongestStepSeconds = 10.0;
// Factor by which an observation moves the median of a step's duration.
constexpr double kMedianStep = 1.1;

void add(StepCounters::Counter& counter, double value, double scale) {
    if (value > 0.0) counter.fetch_add(static_cast<std::uint64_t>(value * scale), std::memory_order_relaxed);
}

}  // namespace

void StepCounters::count_draft(const std::vector<DraftToken>& draft, const DraftSummary& summary) {
    constexpr auto relaxed = std::memory_order_relaxed;
    steps.fetch_add(1, relaxed);
    if (draft.empty()) {
        Counter& missed = summary.miss == DraftMiss::no_context ? no_context
                          : summary.miss == DraftMiss::cost     ? not_worth_cost
                          : summary.miss == DraftMiss::off      ? off
                                                                : over_limit;
        missed.fetch_add(1, relaxed);
        return;
    }
    drafts.fetch_add(1, relaxed);
    drafted.fetch_add(draft.size(), relaxed);
    std::array<std::size_t, kSources> tokens{};
    for (const DraftToken& token : draft) ++tokens[token.source];
    for (std::size_t source = 0; source < tokens.size(); ++source)
        if (tokens[source] > 0) {
            drafts_by[source].fetch_add(1, relaxed);
            drafted_by[source].fetch_add(tokens[source], relaxed);
        }
    add(expected_millionths, summary.expected, 1e6);
}

void PlainStepTimer::note(double cost) {
    if (started_ == Clock::time_point{}) return;
    const double elapsed = std::chrono::duration<double>(Clock::now() - started_).count();
    stop();
    if (!(cost > 0.0) || elapsed > kLongestStepSeconds) return;
    const double plain = elapsed / cost;
    if (seconds_ == 0.0)
        seconds_ = plain;
    else
        seconds_ *= plain > seconds_ ? kMedianStep : 1.0 / kMedianStep;
}

SessionStepper::SessionStepper(Session& session, std::shared_ptr<StepCounters> counters,
                               std::size_t max_tokens)
    : session_(session), counters_(std::move(counters)), max_tokens_(max_tokens), last_cost_(plain_step()) {}

SessionStepper::~SessionStepper() { set_meter(nullptr); }

StepOutcome SessionStepper::step(const StepArguments& arguments) noexcept {
    try {
        return step_locked(arguments);
    } catch (const std::exception& error) {
        StepOutcome failed;
        failed.status = StepStatus::failed;
        try {
            failed.reason = error.what();
        } catch (...) {  // out of memory for the message, too
        }
        return failed;
    }
}

StepOutcome SessionStepper::step_locked(const StepArguments& arguments) {
    const std::scoped_lock lock(mutex_);
    StepOutcome out;
    const auto refuse = [&](StepStatus why) {
        out.status = why;
        return out;
    };
    if (closed_) return refuse(StepStatus::closed);
    if (!arguments.after.empty() && !session_.ends_with(arguments.after))
        return refuse(StepStatus::context_mismatch);
    for (const Token token : arguments.tokens)
        if (token < 0) return refuse(StepStatus::invalid_tokens);
    const std::size_t have = session_.length();
    out.length = have;
    std::span<const Token> fresh = arguments.tokens;
    if (arguments.at >= 0) {
        const auto at = static_cast<std::size_t>(arguments.at);
        if (at > have) return refuse(StepStatus::gap);
        if (at < have) {
            const std::int64_t differs = session_.first_difference(at, fresh);
            if (differs >= 0) {
                out.position = static_cast<std::size_t>(differs);
                out.have = session_.text(out.position, out.position + 1).at(0);
                out.got = fresh[out.position - at];
                return refuse(StepStatus::conflict);
            }
            fresh = fresh.subspan(std::min(fresh.size(), have - at));
        }
    }
    if (meter_ && arguments.max_tokens > 0)
        if (out.probing = meter_->wait(); out.probing.seconds > 0.0) return refuse(StepStatus::probing);
    out.length = have + fresh.size();
    if (fresh.size() > max_tokens_ || have > max_tokens_ - fresh.size()) return refuse(StepStatus::full);
    if (!fresh.empty() && out.length > admitted_.value_or(max_tokens_))
        return refuse(StepStatus::not_admitted);

    if (!fresh.empty()) {
        if (meter_) meter_->count(open_.answer(fresh, have));
        const std::size_t accepted = record_cost(arguments, fresh);
        session_.append(fresh, learns_);
        count_accepted(accepted);
        if (counters_->written) counters_->written->notify();
    }
    if (arguments.max_tokens == 0) return out;
    clear_last_draft();
    DraftSummary summary{.miss = DraftMiss::limit};
    if (meter_ && meter_->full()) {
        counters_->count_draft(last_, summary);
        return out;
    }
    last_ = session_.draft(arguments.max_tokens, *arguments.cost, arguments.tree ? Shape::tree : Shape::chain,
                           arguments.bounds, &summary);
    last_cost_ = arguments.cost;
    last_widest_ = arguments.max_tokens < last_cost_->size() ? arguments.max_tokens + 1 : last_cost_->size();
    counters_->count_draft(last_, summary);
    if (meter_) meter_->count(open_.offer(last_, out.length));
    out.draft = last_;
    timer_.start();
    return out;
}

void SessionStepper::set_meter(std::shared_ptr<ProbeMeter> meter) {
    const std::scoped_lock lock(mutex_);
    if (meter_) meter_->count(open_.leave());
    meter_ = std::move(meter);
}

void SessionStepper::admit(std::size_t tokens) {
    const std::scoped_lock lock(mutex_);
    admitted_ = std::max(admitted_.value_or(0), session_.length() + tokens);
}

void SessionStepper::count_accepted(std::size_t accepted) {
    if (accepted == 0) return;
    counters_->accepted.fetch_add(accepted, std::memory_order_relaxed);
    add(counters_->avoided_ns, static_cast<double>(accepted) * timer_.seconds(), 1e9);
}

void SessionStepper::set_closed(bool closed) {
    const std::scoped_lock lock(mutex_);
    closed_ = closed;
    if (closed && meter_) meter_->count(open_.leave());
}

void SessionStepper::stop_learning() {
    const std::scoped_lock lock(mutex_);
    learns_ = false;
}

void SessionStepper::forget_draft() {
    const std::scoped_lock lock(mutex_);
    clear_last_draft();
    timer_.stop();
}

// Number of further tokens that agree with the last draft; if one does not, the last draft is cleared.
std::size_t SessionStepper::match_last_draft(std::span<const Token> truth) {
    std::size_t n = 0;
    for (auto i = static_cast<std::size_t>(agreed_at_ + 1); i < last_.size() && n < truth.size(); ++i)
        if (last_[i].parent == agreed_at_ && last_[i].token == truth[n]) {
            agreed_at_ = static_cast<std::int32_t>(i);
            counters_->accepted_by[last_[i].source].fetch_add(1, std::memory_order_relaxed);
            ++n;
        }
    agreed_ += n;
    if (n < truth.size()) clear_last_draft();
    return n;
}

// Records the step that wrote these tokens, or a further part of it; returns how many of them were drafted.
std::size_t SessionStepper::record_cost(const StepArguments& arguments, std::span<const Token> fresh) {
    const auto cost = last_cost_;  // clear_last_draft() replaces it
    const std::size_t widest = last_widest_;
    const std::size_t agreed = agreed_;
    std::size_t width = last_.size() + 1;
    std::size_t drafted = 0;  // drafted tokens among `fresh`
    if (arguments.width > 0) {
        width = static_cast<std::size_t>(arguments.width);
        const auto accepted = static_cast<std::size_t>(arguments.accepted);
        drafted = std::min(accepted - std::min(accepted, agreed), fresh.size());
        match_last_draft(fresh.first(drafted));  // counts sources; what was sent may be another draft
        clear_last_draft();
    } else {
        drafted = match_last_draft(fresh);
    }
    // The next token is the target's own. The reported counts may be arbitrary: a step writes at most as many
    // tokens as its widest draft and one.
    const std::size_t written = std::min({fresh.size(), drafted + 1, widest});
    if (agreed > 0) {
        session_.record_more_tokens(written);
        return drafted;
    }
    const double paid = (*cost)[std::min(width, widest) - 1];
    session_.record_step(paid, written);
    timer_.note(paid);
    const double more = paid - cost->front();
    add(counters_->verify_millionths, more, 1e6);
    add(counters_->verify_ns, more * timer_.seconds(), 1e9);
    return drafted;
}

// The next step is one without a draft: a caller that does not request a draft in every step does not report
// the cost of the others.
void SessionStepper::clear_last_draft() {
    last_.clear();
    agreed_ = 0;
    agreed_at_ = -1;
    last_cost_ = plain_step();
    last_widest_ = 1;
}

void step_all(std::vector<PlannedStep>& steps) {
    const auto one = [&](std::size_t i) { steps[i].outcome = steps[i].stepper->step(steps[i].arguments); };
    if (steps.size() < kMinParallelSteps)
        for (std::size_t i = 0; i < steps.size(); ++i) one(i);
    else
        parallel_for(steps.size(), one);
}

}  // namespace suffixsvc
