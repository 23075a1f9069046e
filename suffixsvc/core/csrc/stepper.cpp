#include "stepper.h"

#include <algorithm>

#include "helpers.h"

namespace suffixsvc {

namespace {

// Fewer steps than this are done sooner than a sleeping thread wakes up.
constexpr std::size_t kWorthSharing = 3;

std::shared_ptr<const CostCurve> plain_step() {
    static const auto curve = std::make_shared<const CostCurve>(CostCurve{1.0});
    return curve;
}

}  // namespace

Stepper::Stepper(Session& session, std::shared_ptr<StepCounters> counters, std::size_t most)
    : session_(session), counters_(std::move(counters)), most_(most), last_cost_(plain_step()) {}

StepOutcome Stepper::step(const StepArguments& arguments) noexcept {
    try {
        return take(arguments);
    } catch (const std::exception& error) {
        StepOutcome failed;
        failed.status = StepStatus::failed;
        try {
            failed.reason = error.what();
        } catch (...) {  // no memory for words either
        }
        return failed;
    } catch (...) {
        StepOutcome failed;
        failed.status = StepStatus::failed;
        return failed;
    }
}

StepOutcome Stepper::take(const StepArguments& arguments) {
    const std::scoped_lock lock(mutex_);
    StepOutcome out;
    const auto refuse = [&](StepStatus why) {
        out.status = why;
        return out;
    };
    if (closed_) return refuse(StepStatus::closed);
    if (!arguments.after.empty() && !session_.ends_with(arguments.after))
        return refuse(StepStatus::elsewhere);
    for (const Token token : arguments.tokens)
        if (token < 0) return refuse(StepStatus::not_tokens);
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
    out.length = have + fresh.size();
    if (fresh.size() > most_ || have > most_ - fresh.size()) return refuse(StepStatus::full);

    if (!fresh.empty()) {
        const std::size_t accepted = price(arguments, fresh);
        session_.append(fresh, true);
        counters_->accepted.fetch_add(accepted, std::memory_order_relaxed);
    }
    if (arguments.max_tokens == 0) return out;
    forget_last();
    last_ = session_.draft(arguments.max_tokens, *arguments.cost, arguments.tree ? Shape::tree : Shape::chain,
                           arguments.bounds);
    last_cost_ = arguments.cost;
    counters_->steps.fetch_add(1, std::memory_order_relaxed);
    counters_->drafts.fetch_add(!last_.empty(), std::memory_order_relaxed);
    counters_->drafted.fetch_add(last_.size(), std::memory_order_relaxed);
    out.draft = last_;
    return out;
}

void Stepper::set_closed(bool closed) {
    const std::scoped_lock lock(mutex_);
    closed_ = closed;
}

void Stepper::forget_draft() {
    const std::scoped_lock lock(mutex_);
    forget_last();
}

// How many more tokens of the last draft came true; where one did not, there is no last draft any more.
std::size_t Stepper::agree(std::span<const Token> truth) {
    std::size_t n = 0;
    for (auto i = static_cast<std::size_t>(agreed_at_ + 1); i < last_.size() && n < truth.size(); ++i)
        if (last_[i].parent == agreed_at_ && last_[i].token == truth[n]) {
            agreed_at_ = static_cast<std::int32_t>(i);
            ++n;
        }
    agreed_ += n;
    if (n < truth.size()) forget_last();
    return n;
}

// Accounts for the step that wrote these tokens, or for more of it; returns how many of them had been
// drafted.
std::size_t Stepper::price(const StepArguments& arguments, std::span<const Token> fresh) {
    const auto cost = last_cost_;  // forget_last() lets go of it
    const std::size_t agreed = agreed_;
    std::size_t width = last_.size() + 1;
    std::size_t drafted = 0;  // of these tokens
    if (arguments.width > 0) {
        width = static_cast<std::size_t>(arguments.width);
        const auto accepted = static_cast<std::size_t>(arguments.accepted);
        drafted = std::min(accepted - std::min(accepted, agreed), fresh.size());
        forget_last();
    } else {
        drafted = agree(fresh);
    }
    // One more is the target's own. What was told may be any number: a step writes no more than it can cost.
    const std::size_t written = std::min({fresh.size(), drafted + 1, cost->size()});
    if (agreed > 0)
        session_.account_more(written);
    else
        session_.account((*cost)[std::min(width, cost->size()) - 1], written);
    return drafted;
}

// What comes next is a step without a draft: a caller that did not ask for one in every step says nothing of
// what the others cost.
void Stepper::forget_last() {
    last_.clear();
    agreed_ = 0;
    agreed_at_ = -1;
    last_cost_ = plain_step();
}

void step_all(std::vector<PlannedStep>& steps) {
    const auto one = [&](std::size_t i) { steps[i].outcome = steps[i].stepper->step(steps[i].arguments); };
    if (steps.size() < kWorthSharing)
        for (std::size_t i = 0; i < steps.size(); ++i) one(i);
    else
        share_out(steps.size(), one);
}

}  // namespace suffixsvc
