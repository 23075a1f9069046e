// Steps of many sessions side by side, over and over, from several threads at once: for the sanitizers.
//
// Every thread owns a set of sessions in one shared namespace and steps them in batches; one more thread
// closes and reopens steppers. At the end the counters must agree with what was asked.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "../helpers.h"
#include "../stepper.h"

using namespace suffixsvc;

namespace {

constexpr int kThreads = 3;
constexpr int kSessions = 8;
constexpr int kRounds = 60;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "steps: %s\n", what);
    std::exit(1);
}

void every_turn_is_taken_once() {
    for (std::size_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> taken(count);
        share_out(count, [&](std::size_t i) { ++taken[i]; });
        for (const auto& times : taken) require(times == 1, "a turn was not taken once");
    }
}

}  // namespace

int main() {
    every_turn_is_taken_once();
    const auto index = std::make_shared<Index>(64);
    const auto learner = std::make_shared<Learner>();
    const auto counters = std::make_shared<StepCounters>();
    const auto cost = std::make_shared<const CostCurve>(CostCurve{1.0, 1.02, 1.04, 1.06, 1.08});
    std::atomic<std::uint64_t> taken{0}, refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            std::vector<std::unique_ptr<Session>> sessions;
            std::vector<std::unique_ptr<Stepper>> steppers;
            for (int s = 0; s < kSessions; ++s) {
                sessions.push_back(std::make_unique<Session>(index, std::vector<std::shared_ptr<Index>>{},
                                                             learner, 2 + t * kSessions + s, 64));
                steppers.push_back(std::make_unique<Stepper>(*sessions.back(), counters, 1 << 20));
            }
            for (int round = 0; round < kRounds; ++round) {
                const std::vector<Token> text{round % 7, round % 5, round % 3};
                steppers[0]->set_closed(round % 4 == 0);
                std::vector<PlannedStep> steps;
                for (auto& stepper : steppers) {
                    StepArguments a;
                    a.tokens = text;
                    a.max_tokens = 4;
                    a.cost = cost;
                    a.tree = round % 2 == 0;
                    steps.push_back(PlannedStep{stepper.get(), a, {}});
                }
                step_all(steps);
                for (const PlannedStep& step : steps) {
                    const bool done = step.outcome.status == StepStatus::done;
                    require(done || step.outcome.status == StepStatus::closed, "a step failed");
                    ++(done ? taken : refused);
                }
            }
        });
    for (auto& thread : threads) thread.join();
    require(counters->steps == taken, "steps were counted wrongly");
    require(refused == kThreads * kRounds / 4, "a closed session took a step");
    require(index->check().empty(), "the index is broken");
    std::puts("steps: ok");
}
