#include "wire/step_dispatcher.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace suffixsvc {

namespace {

// Mean cost of a drafted token, in plain steps, up to which TreeMode::automatic drafts trees.
constexpr double kMaxTreeCost = 0.1;

struct Item {
    const StepRequest* request = nullptr;
    std::size_t index = 0;
    std::shared_ptr<SessionSlot> slot;
};

// False if the length of the bytes is not that of an array; a stepper checks the ids.
bool unpack(std::string_view data, std::vector<Token>& tokens) {
    if (data.size() % sizeof(Token) != 0) return false;
    tokens.resize(data.size() / sizeof(Token));
    if (!tokens.empty()) std::memcpy(tokens.data(), data.data(), data.size());
    return true;
}

}  // namespace

StepDispatcher::StepDispatcher(std::size_t max_draft, std::string sources)
    : max_draft_(max_draft), sources_(std::move(sources)) {}

void StepDispatcher::add(const std::string& key, std::shared_ptr<SessionSlot> slot) {
    std::shared_ptr<SessionSlot> before;  // destroyed after the lock is released
    const std::scoped_lock lock(mutex_);
    before = std::exchange(slots_[key], std::move(slot));
}

void StepDispatcher::remove(const std::string& key) {
    decltype(slots_)::node_type removed;  // destroyed after the lock is released
    const std::scoped_lock lock(mutex_);
    removed = slots_.extract(key);
}

std::vector<StepAnswer> StepDispatcher::step(std::span<const StepRequest> requests, double now,
                                             std::string_view scope) {
    const std::size_t n = requests.size();
    std::vector<StepAnswer> answers(n);
    std::vector<std::vector<Token>> tokens(n);
    std::vector<Item> items;
    items.reserve(n);
    {
        std::string key(scope);
        const std::shared_lock lock(mutex_);
        for (std::size_t i = 0; i < n; ++i) {
            key.resize(scope.size());
            const auto at = slots_.find(key.append(requests[i].session_id));
            if (at == slots_.end())
                answers[i] = StepOutcome{.status = StepStatus::unknown_session};
            else
                items.push_back(Item{&requests[i], i, at->second});
        }
    }
    // In the order of the ids, and of the batch for equal ones: two batches cannot deadlock.
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        return a.request->session_id < b.request->session_id;
    });
    std::vector<std::unique_lock<std::mutex>> locks;
    std::vector<PlannedStep> steps;
    std::vector<const Item*> stepping;
    locks.reserve(items.size());
    steps.reserve(items.size());
    stepping.reserve(items.size());
    const SessionSlot* previous = nullptr;
    for (const Item& item : items) {
        SessionSlot& slot = *item.slot;
        const StepRequest& request = *item.request;
        if (&slot == previous) {
            answers[item.index] = StepOutcome{.status = StepStatus::duplicate_session};
            continue;
        }
        previous = &slot;
        locks.emplace_back(slot.mutex);
        if (!slot.stepper || !slot.cost) {
            answers[item.index] = StepOutcome{.status = StepStatus::unknown_session};
            continue;
        }
        slot.last_active = now;
        if (request.seq != 0 && request.seq <= slot.seq) {
            if (request.seq == slot.seq && slot.answer)  // a retry of the last request
                answers[item.index] = *slot.answer;
            else
                answers[item.index] = StepOutcome{.status = StepStatus::stale_sequence, .last_seq = slot.seq};
            continue;
        }
        if (!unpack(request.tokens, tokens[item.index])) {
            answers[item.index] = StepOutcome{.status = StepStatus::invalid_tokens};
            continue;
        }
        StepArguments a;
        a.tokens = tokens[item.index];
        a.at = request.at;
        a.max_tokens = std::min(static_cast<std::size_t>(std::max(request.max_draft_tokens, 0)), max_draft_);
        a.cost = request.cost ? request.cost : slot.cost;
        a.tree = request.tree == TreeMode::tree ||
                 (request.tree == TreeMode::automatic && trees_pay(*a.cost, a.max_tokens));
        a.width = request.width;
        a.accepted = request.accepted;
        steps.push_back(PlannedStep{slot.stepper, std::move(a), {}});
        stepping.push_back(&item);
    }
    step_all(steps);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        SessionSlot& slot = *stepping[i]->slot;
        const StepRequest& request = *stepping[i]->request;
        StepOutcome& outcome = steps[i].outcome;
        if (outcome.status != StepStatus::done) {
            answers[stepping[i]->index] = std::move(outcome);
            continue;
        }
        if (request.cost) slot.cost = request.cost;
        std::string answer =
            pack_step_reply(request.session_id, request.seq, outcome.draft, outcome.length, sources_);
        if (request.seq != 0) {
            slot.seq = request.seq;
            slot.answer = answer;
        }
        answers[stepping[i]->index] = std::move(answer);
    }
    return answers;
}

std::optional<DispatchReply> StepDispatcher::answer(std::string_view request, double now,
                                                    std::string_view scope) {
    if (closed_) return std::nullopt;
    const std::size_t most_steps = [this] {
        const std::shared_lock lock(mutex_);
        return slots_.size();
    }();
    const std::optional<ParsedBatch> batch = parse_steps(request, most_steps);
    if (!batch) return std::nullopt;
    DispatchReply reply;
    reply.items = step(batch->steps, now, scope);
    if (batch->no_reply) return DispatchReply{};
    const auto refused = [](const StepAnswer& answer) { return std::holds_alternative<StepOutcome>(answer); };
    if (std::none_of(reply.items.begin(), reply.items.end(), refused)) {
        std::vector<std::string> answers;
        answers.reserve(reply.items.size());
        for (StepAnswer& answer : reply.items) answers.push_back(std::get<std::string>(std::move(answer)));
        reply.bytes = pack_stream_reply(batch->id, answers);
        reply.items.clear();
    }
    return reply;
}

bool trees_pay(const CostCurve& cost, std::size_t max_tokens) {
    const std::size_t longest = std::min(max_tokens, cost.size() - 1);
    if (longest == 0) return false;
    const auto first = cost.begin() + 1;
    const double cheapest =
        *std::min_element(first, first + static_cast<std::ptrdiff_t>(longest)) - cost.front();
    return cheapest / static_cast<double>(longest) <= kMaxTreeCost;
}

}  // namespace suffixsvc
