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

    std::size_t accepted = 0;
    if (!fresh.empty()) {
        const bool told = arguments.width > 0;
        accepted = told ? static_cast<std::size_t>(arguments.accepted) : agreeing(fresh);
        const std::size_t sent = told ? static_cast<std::size_t>(arguments.width) : last_.size() + 1;
        // A caller that did not ask in every step says nothing of what the others cost.
        session_.account((*last_cost_)[std::min(sent, last_cost_->size()) - 1], std::min(fresh.size(), sent));
        session_.append(fresh, true);
        counters_->accepted.fetch_add(accepted, std::memory_order_relaxed);
    }
    last_.clear();
    if (arguments.max_tokens == 0) {
        last_cost_ = plain_step();
        return out;
    }
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
    last_.clear();
    last_cost_ = plain_step();
}

// Tokens of the longest path of the last draft that came true.
std::size_t Stepper::agreeing(std::span<const Token> truth) const {
    std::size_t at = 0;
    std::int32_t node = -1;
    for (std::size_t i = 0; i < last_.size() && at < truth.size(); ++i)
        if (last_[i].parent == node && last_[i].token == truth[at]) {
            node = static_cast<std::int32_t>(i);
            ++at;
        }
    return at;
}

void step_all(std::vector<PlannedStep>& steps) {
    const auto one = [&](std::size_t i) { steps[i].outcome = steps[i].stepper->step(steps[i].arguments); };
    if (steps.size() < kWorthSharing)
        for (std::size_t i = 0; i < steps.size(); ++i) one(i);
    else
        share_out(steps.size(), one);
}

}  // namespace suffixsvc
