// Concurrent steps: every thread owns a set of sessions in one shared namespace and steps them in batches,
// with steppers that are closed and reopened; then through a dispatcher. At the end the counters must agree
// with the requests.
#include <poll.h>

#include <chrono>

#include "base/sync/parallel_for.h"
#include "common.h"
#include "draft/session/session_stepper.h"
#include "wire/step_dispatcher.h"

namespace suffixsvc {

namespace {

constexpr int kThreads = 3;
constexpr int kSessions = 8;
constexpr int kRounds = 60;

// Sessions of one namespace, each with a stepper and a slot.
struct Sessions {
    std::shared_ptr<Index> index = std::make_shared<Index>();
    std::shared_ptr<Learner> learner = std::make_shared<Learner>();
    std::shared_ptr<StepCounters> counters = std::make_shared<StepCounters>();
    std::shared_ptr<const CostCurve> cost = std::make_shared<const CostCurve>(linear_cost(4, 0.02));
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<SessionStepper>> steppers;
    std::vector<std::shared_ptr<SessionSlot>> slots;

    explicit Sessions(std::uint32_t n) {
        for (std::uint32_t s = 0; s < n; ++s) {
            sessions.push_back(
                std::make_unique<Session>(index, std::vector<std::shared_ptr<Index>>{}, learner, 2 + s, 64));
            steppers.push_back(std::make_unique<SessionStepper>(*sessions.back(), counters, 1 << 20));
            slots.push_back(std::make_shared<SessionSlot>());
            slots.back()->stepper = steppers.back().get();
            slots.back()->cost = cost;
        }
    }
};

// Number of steps of a batch of `n` that were taken.
std::size_t taken(const DispatchReply& reply, int n) {
    if (reply.items.empty()) return static_cast<std::size_t>(n);
    const auto done = [](const StepAnswer& answer) { return std::holds_alternative<std::string>(answer); };
    return static_cast<std::size_t>(std::ranges::count_if(reply.items, done));
}

void every_iteration_runs_once() {
    for (std::size_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> runs(count);
        parallel_for(count, [&](std::size_t i) { ++runs[i]; });
        for (const auto& times : runs) require(times == 1, "an iteration did not run once");
    }
}

std::string field(int number, const std::string& data) {  // shorter than 128 bytes
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(data.size())} + data;
}

// A StreamRequest that steps sessions `first` .. `last` - 1 by one token each.
std::string request(int first, int last, char token) {
    std::string items;
    for (int s = first; s < last; ++s)
        items += field(1, field(1, std::string(1, static_cast<char>('a' + s))) +
                              field(3, std::string{token, 0, 0, 0}) + std::string{5 << 3, 4});
    return field(3, items);
}

// Several threads send overlapping batches while another one detaches a session and attaches it again.
void dispatcher_serves_many_threads() {
    const Sessions all(6);
    StepDispatcher dispatcher(4, std::string{1, 2});
    for (std::size_t s = 0; s < all.slots.size(); ++s)
        dispatcher.add(std::string(1, static_cast<char>('a' + s)), all.slots[s]);
    std::atomic<std::size_t> stepped{0};
    Threads threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            for (int round = 0; round < kRounds; ++round)
                if (const auto reply =
                        dispatcher.answer(request(t, t + 4, static_cast<char>(round % 5)), round, ""))
                    stepped += taken(*reply, 4);
        });
    threads.emplace_back([&] {
        const auto set_stepper = [&](SessionStepper* stepper) {
            const std::scoped_lock lock(all.slots[0]->mutex);
            all.slots[0]->stepper = stepper;
        };
        for (int round = 0; round < kRounds; ++round) {
            set_stepper(nullptr);
            dispatcher.remove("a");
            set_stepper(all.steppers[0].get());
            dispatcher.add("a", all.slots[0]);
        }
    });
    threads.clear();
    std::size_t tokens = 0;
    for (const auto& session : all.sessions) tokens += session->length();
    require(taken(*dispatcher.answer(request(0, 1, 0), 0.0, "other/"), 1) == 0,
            "a scope reached another one's");
    require(tokens == stepped, "the answered batches are not those that were applied");
    require(!dispatcher.answer("\x1a\x7f", 0.0, ""), "a truncated message was answered");
}

void threads_step_their_sessions() {
    const Sessions all(kThreads * kSessions);
    std::atomic<std::uint64_t> taken_steps{0}, refused{0};
    Threads threads;
    for (std::size_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, steppers = std::span(all.steppers).subspan(t * kSessions, kSessions)] {
            for (int round = 0; round < kRounds; ++round) {
                const Text text{round % 7, round % 5, round % 3};
                steppers[0]->set_closed(round % 4 == 0);
                std::vector<PlannedStep> steps;
                for (auto& stepper : steppers)
                    steps.push_back(
                        {stepper.get(),
                         {.tokens = text, .max_tokens = 4, .cost = all.cost, .tree = round % 2 == 0},
                         {}});
                step_all(steps);
                for (const PlannedStep& step : steps) {
                    const bool done = step.outcome.status == StepStatus::done;
                    require(done || step.outcome.status == StepStatus::closed, "a step failed");
                    ++(done ? taken_steps : refused);
                }
            }
        });
    threads.clear();
    require(all.counters->steps == taken_steps, "steps were counted wrongly");
    require(refused == kThreads * kRounds / 4, "a closed session took a step");
    require_sound(*all.index);
}

// One thread waits for the writes of others, as a follower's uplink does; sessions stop learning meanwhile,
// and their learner is merged with another one.
void a_waiting_thread_sees_every_write() {
    const Sessions all(kThreads);
    all.counters->written = std::make_shared<WriteSignal>(std::chrono::microseconds(100));
    const auto written = [&] {
        std::size_t tokens = 0;
        for (const auto& session : all.sessions) tokens += session->length();
        return tokens;
    };
    constexpr std::size_t kTokens = std::size_t{3} * kThreads * kRounds;
    Threads threads;
    for (std::size_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            for (int round = 0; round < kRounds; ++round) {
                const Text text{round % 7, round % 5, round % 3};
                const StepOutcome outcome =
                    all.steppers[t]->step({.tokens = text, .max_tokens = 4, .cost = all.cost});
                require(outcome.status == StepStatus::done, "a step failed");
            }
        });
    threads.emplace_back([&] {
        Learner other;
        for (int round = 0; round < kRounds / 6; ++round) {
            require(other.merge(all.learner->difference(Learner().save())), "a difference was refused");
            require(all.learner->merge(other.difference(Learner().save())), "a difference was refused");
        }
        for (const auto& stepper : all.steppers) stepper->stop_learning();
    });
    threads.emplace_back([&] {
        pollfd told{.fd = all.counters->written->descriptor(), .events = POLLIN, .revents = 0};
        while (written() < kTokens) {
            require(::poll(&told, 1, 60'000) == 1, "a write was not told of");
            all.counters->written->clear();
        }
    });
    threads.clear();
    require(written() == kTokens, "not all was written");
}

}  // namespace

void stress_steps(const StressArguments&) {
    every_iteration_runs_once();
    dispatcher_serves_many_threads();
    threads_step_their_sessions();
    a_waiting_thread_sees_every_write();
}

}  // namespace suffixsvc
