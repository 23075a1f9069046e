// Stress test of concurrent steps for the sanitizers.
//
// Every thread owns a set of sessions in one shared namespace and steps them in batches, with steppers that
// are closed and reopened; then through a dispatcher, and through sockets connected to a dispatcher. At the
// end the counters must agree with the requests.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "base/parallel_for.h"
#include "draft/session_stepper.h"
#include "wire/framed_connection.h"
#include "wire/step_dispatcher.h"

using namespace suffixsvc;

namespace {

// Number of steps of a batch of `n` that were taken.
std::size_t taken(const DispatchReply& reply, int n) {
    if (reply.items.empty()) return static_cast<std::size_t>(n);
    const auto done = [](const StepAnswer& answer) { return std::holds_alternative<std::string>(answer); };
    return static_cast<std::size_t>(std::count_if(reply.items.begin(), reply.items.end(), done));
}

constexpr int kThreads = 3;
constexpr int kSessions = 8;
constexpr int kRounds = 60;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "steps: %s\n", what);
    std::exit(1);
}

void every_iteration_runs_once() {
    for (std::size_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> taken(count);
        parallel_for(count, [&](std::size_t i) { ++taken[i]; });
        for (const auto& times : taken) require(times == 1, "an iteration did not run once");
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
    constexpr int kSlots = 6;
    const auto index = std::make_shared<Index>(64);
    const auto learner = std::make_shared<Learner>();
    const auto counters = std::make_shared<StepCounters>();
    const auto cost = std::make_shared<const CostCurve>(CostCurve{1.0, 1.02, 1.04, 1.06, 1.08});
    StepDispatcher dispatcher(4, std::string{1, 2});
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<SessionStepper>> steppers;
    std::vector<std::shared_ptr<SessionSlot>> slots;
    for (int s = 0; s < kSlots; ++s) {
        sessions.push_back(
            std::make_unique<Session>(index, std::vector<std::shared_ptr<Index>>{}, learner, 2 + s, 64));
        steppers.push_back(std::make_unique<SessionStepper>(*sessions.back(), counters, 1 << 20));
        slots.push_back(std::make_shared<SessionSlot>());
        slots.back()->stepper = steppers.back().get();
        slots.back()->cost = cost;
        dispatcher.add(std::string(1, static_cast<char>('a' + s)), slots.back());
    }
    std::atomic<std::size_t> stepped{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            const int first = t, last = t + 4;
            for (int round = 0; round < kRounds; ++round)
                if (const auto reply =
                        dispatcher.answer(request(first, last, static_cast<char>(round % 5)), round))
                    stepped += taken(*reply, last - first);
        });
    threads.emplace_back([&] {
        for (int round = 0; round < kRounds; ++round) {
            {
                const std::scoped_lock lock(slots[0]->mutex);
                slots[0]->stepper = nullptr;
            }
            dispatcher.remove("a");
            {
                const std::scoped_lock lock(slots[0]->mutex);
                slots[0]->stepper = steppers[0].get();
            }
            dispatcher.add("a", slots[0]);
        }
    });
    for (auto& thread : threads) thread.join();
    std::size_t tokens = 0;
    for (const auto& session : sessions) tokens += session->length();
    require(tokens == stepped, "the answered batches are not those that were applied");
    require(!dispatcher.answer("\x1a\x7f", 0.0), "a truncated message was answered");
}

// Connections to one dispatcher that receive frames in odd pieces; every step is answered, and every other
// message is returned.
void connections_share_a_dispatcher() {
    const auto index = std::make_shared<Index>(64);
    const auto learner = std::make_shared<Learner>();
    const auto counters = std::make_shared<StepCounters>();
    Session session(index, std::vector<std::shared_ptr<Index>>{}, learner, 2, 64);
    SessionStepper stepper(session, counters, 1 << 20);
    const auto slot = std::make_shared<SessionSlot>();
    slot->stepper = &stepper;
    slot->cost = std::make_shared<const CostCurve>(CostCurve{1.0, 1.02, 1.04, 1.06, 1.08});
    StepDispatcher dispatcher(4, std::string{1, 2});
    dispatcher.add("a", slot);
    const std::string good = request(0, 1, 3), other{0x12, 0x00};
    const auto framed = [](const std::string& m) {
        return std::string{static_cast<char>(m.size()), 0, 0, 0} + m;
    };
    std::atomic<std::size_t> left{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&] {
            int ends[2];
            require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair failed");
            std::thread service([&] {
                FramedConnection stream(dispatcher, ends[1], 100);
                for (UnhandledMessage found = stream.next(); found.kind == UnhandledMessage::Kind::message;
                     found = stream.next())
                    ++left;
                ::close(ends[1]);
            });
            std::string sent;
            for (int round = 0; round < kRounds; ++round) sent += framed(good) + framed(other);
            std::thread reader([&] {  // until the service closes the connection
                char piece[64];
                while (::recv(ends[0], piece, sizeof piece, 0) > 0) {
                }
            });
            for (std::size_t at = 0; at < sent.size(); at += 7)
                require(::send(ends[0], sent.data() + at, std::min<std::size_t>(7, sent.size() - at), 0) > 0,
                        "the service does not read");
            ::shutdown(ends[0], SHUT_WR);
            service.join();
            reader.join();
            ::close(ends[0]);
        });
    for (auto& thread : threads) thread.join();
    require(left == kThreads * kRounds, "a message without steps was not returned");
    require(session.length() == kThreads * kRounds, "a step was lost");
}

}  // namespace

int main() {
    every_iteration_runs_once();
    connections_share_a_dispatcher();
    dispatcher_serves_many_threads();
    const auto index = std::make_shared<Index>(64);
    const auto learner = std::make_shared<Learner>();
    const auto counters = std::make_shared<StepCounters>();
    const auto cost = std::make_shared<const CostCurve>(CostCurve{1.0, 1.02, 1.04, 1.06, 1.08});
    std::atomic<std::uint64_t> taken{0}, refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            std::vector<std::unique_ptr<Session>> sessions;
            std::vector<std::unique_ptr<SessionStepper>> steppers;
            for (int s = 0; s < kSessions; ++s) {
                sessions.push_back(std::make_unique<Session>(index, std::vector<std::shared_ptr<Index>>{},
                                                             learner, 2 + t * kSessions + s, 64));
                steppers.push_back(std::make_unique<SessionStepper>(*sessions.back(), counters, 1 << 20));
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
