#include "desk.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "packing.h"
#include "step_parser.h"

namespace suffixsvc {

namespace {

struct Item {
    const ParsedStep* step = nullptr;
    std::size_t place = 0;
    std::shared_ptr<Seat> seat;
};

// False unless the bytes are token ids.
bool unpack(std::string_view data, std::vector<Token>& tokens) {
    if (data.size() % sizeof(Token) != 0) return false;
    tokens.resize(data.size() / sizeof(Token));
    if (!tokens.empty()) std::memcpy(tokens.data(), data.data(), data.size());
    if constexpr (std::endian::native == std::endian::big)
        for (Token& t : tokens) t = static_cast<Token>(__builtin_bswap32(static_cast<std::uint32_t>(t)));
    return std::all_of(tokens.begin(), tokens.end(), [](Token t) { return t >= 0; });
}

std::shared_ptr<const CostCurve> cut_to(Seat& seat, std::size_t width) {
    const std::size_t entries = std::min(width + 1, seat.cost->size());
    if (!seat.cut || seat.cut->size() != entries)
        seat.cut = std::make_shared<const CostCurve>(
            seat.cost->begin(), seat.cost->begin() + static_cast<std::ptrdiff_t>(entries));
    return seat.cut;
}

}  // namespace

Desk::Desk(std::size_t max_draft, std::string sources)
    : max_draft_(max_draft), sources_(std::move(sources)) {}

void Desk::add(const std::string& session_id, std::shared_ptr<Seat> seat) {
    std::shared_ptr<Seat> before;  // let go of outside the lock
    const std::scoped_lock lock(mutex_);
    before = std::exchange(seats_[session_id], std::move(seat));
}

void Desk::remove(const std::string& session_id) {
    std::shared_ptr<Seat> gone;
    const std::scoped_lock lock(mutex_);
    if (const auto at = seats_.find(session_id); at != seats_.end()) {
        gone = std::move(at->second);
        seats_.erase(at);
    }
}

std::size_t Desk::seated() {
    const std::shared_lock lock(mutex_);
    return seats_.size();
}

std::optional<DeskReply> Desk::answer(std::string_view request, double now) {
    if (closed_) return std::nullopt;
    const std::optional<ParsedBatch> batch = parse_steps(request, seated());
    if (!batch) return std::nullopt;
    const std::size_t n = batch->steps.size();
    std::vector<Item> items(n);
    std::vector<std::vector<Token>> tokens(n);
    {
        const std::shared_lock lock(mutex_);
        for (std::size_t i = 0; i < n; ++i) {
            const ParsedStep& step = batch->steps[i];
            const auto at = seats_.find(std::string(step.session_id));
            if (at == seats_.end()) return std::nullopt;
            items[i] = Item{&step, i, at->second};
        }
    }
    // A decode step accepts a whole draft and one token more, at most. The limit of memory must admit a
    // larger one first (index/session.py).
    for (std::size_t i = 0; i < n; ++i)
        if (!unpack(batch->steps[i].tokens, tokens[i]) || tokens[i].size() > max_draft_ + 1)
            return std::nullopt;
    // Python holds several turns in the same order: code points sort as their UTF-8 does.
    std::sort(items.begin(), items.end(),
              [](const Item& a, const Item& b) { return a.step->session_id < b.step->session_id; });
    for (std::size_t i = 1; i < n; ++i)
        if (items[i].seat == items[i - 1].seat) return std::nullopt;

    std::vector<std::unique_lock<std::mutex>> turns;
    turns.reserve(n);
    for (const Item& item : items) turns.emplace_back(item.seat->turn);
    for (const Item& item : items) {
        const Seat& seat = *item.seat;
        const std::uint64_t seq = item.step->seq;
        if (!seat.stepper || !seat.cost) return std::nullopt;
        if (seq != 0 && seq <= seat.seq && !(seq == seat.seq && seat.answer)) return std::nullopt;
    }

    std::vector<std::optional<std::string>> answers(n);
    std::vector<PlannedStep> steps;
    std::vector<const Item*> stepping;
    steps.reserve(n);
    stepping.reserve(n);
    for (const Item& item : items) {
        Seat& seat = *item.seat;
        seat.touched = now;
        if (item.step->seq != 0 && item.step->seq == seat.seq) {  // asked again
            answers[item.place] = seat.answer;
            continue;
        }
        StepArguments a;
        a.tokens = tokens[item.place];
        a.at = item.step->at;
        a.max_tokens = std::min(static_cast<std::size_t>(item.step->max_draft_tokens), max_draft_);
        a.cost = cut_to(seat, a.max_tokens);
        a.tree = item.step->tree;
        a.width = item.step->width;
        a.accepted = item.step->accepted;
        steps.push_back(PlannedStep{seat.stepper, std::move(a), {}});
        stepping.push_back(&item);
    }
    step_all(steps);
    bool all = true;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const Item& item = *stepping[i];
        const StepOutcome& outcome = steps[i].outcome;
        if (outcome.status != StepStatus::done) {
            all = false;
            continue;
        }
        answers[item.place] =
            pack_step_reply(item.step->session_id, item.step->seq, outcome.draft, outcome.length, sources_);
        if (item.step->seq != 0) {
            item.seat->seq = item.step->seq;
            item.seat->answer = answers[item.place];
        }
    }
    turns.clear();
    DeskReply reply;
    if (all)
        reply.bytes = pack_stream_reply(batch->id, answers);
    else
        reply.items = std::move(answers);
    return reply;
}

}  // namespace suffixsvc
