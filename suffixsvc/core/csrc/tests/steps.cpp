// Steps of many sessions side by side, over and over, from several threads at once: for the sanitizers.
//
// Every thread owns a set of sessions in one shared namespace and steps them in batches; one more thread
// closes and reopens steppers; then through a desk, and through sockets at a desk. At the end the counters
// must agree with what was asked.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "../desk.h"
#include "../desk_stream.h"
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

// Several threads send overlapping batches while another takes sessions away and brings them back.
void a_desk_serves_many_threads() {
    constexpr int kSeats = 6;
    const auto index = std::make_shared<Index>(64);
    const auto learner = std::make_shared<Learner>();
    const auto counters = std::make_shared<StepCounters>();
    const auto cost = std::make_shared<const CostCurve>(CostCurve{1.0, 1.02, 1.04, 1.06, 1.08});
    Desk desk(4, std::string{1, 2});
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Stepper>> steppers;
    std::vector<std::shared_ptr<Seat>> seats;
    for (int s = 0; s < kSeats; ++s) {
        sessions.push_back(
            std::make_unique<Session>(index, std::vector<std::shared_ptr<Index>>{}, learner, 2 + s, 64));
        steppers.push_back(std::make_unique<Stepper>(*sessions.back(), counters, 1 << 20));
        seats.push_back(std::make_shared<Seat>());
        seats.back()->stepper = steppers.back().get();
        seats.back()->cost = cost;
        desk.add(std::string(1, static_cast<char>('a' + s)), seats.back());
    }
    std::atomic<std::size_t> stepped{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            const int first = t, last = t + 4;
            for (int round = 0; round < kRounds; ++round)
                if (desk.answer(request(first, last, static_cast<char>(round % 5)), round))
                    stepped += last - first;
        });
    threads.emplace_back([&] {
        for (int round = 0; round < kRounds; ++round) {
            {
                const std::scoped_lock turn(seats[0]->turn);
                seats[0]->stepper = nullptr;
            }
            desk.remove("a");
            {
                const std::scoped_lock turn(seats[0]->turn);
                seats[0]->stepper = steppers[0].get();
            }
            desk.add("a", seats[0]);
        }
    });
    for (auto& thread : threads) thread.join();
    std::size_t tokens = 0;
    for (const auto& session : sessions) tokens += session->length();
    require(tokens == stepped, "a batch was answered and not taken, or taken and not answered");
    require(!desk.answer("\x1a\x7f", 0.0), "a torn message was answered");
}

// Sockets on one desk, each written to in odd pieces; every frame is answered, and what is no step left over.
void streams_share_a_desk() {
    const auto index = std::make_shared<Index>(64);
    const auto learner = std::make_shared<Learner>();
    const auto counters = std::make_shared<StepCounters>();
    Session session(index, std::vector<std::shared_ptr<Index>>{}, learner, 2, 64);
    Stepper stepper(session, counters, 1 << 20);
    const auto seat = std::make_shared<Seat>();
    seat->stepper = &stepper;
    seat->cost = std::make_shared<const CostCurve>(CostCurve{1.0, 1.02, 1.04, 1.06, 1.08});
    Desk desk(4, std::string{1, 2});
    desk.add("a", seat);
    const std::string good = request(0, 1, 3), other{0x12, 0x00};
    const auto framed = [](const std::string& m) {
        return std::string{static_cast<char>(m.size()), 0, 0, 0} + m;
    };
    std::atomic<std::size_t> left{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&] {
            int ends[2];
            require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
            std::thread service([&] {
                DeskStream stream(desk, ends[1], 100);
                for (Unanswered found = stream.next(); found.kind == Unanswered::Kind::message;
                     found = stream.next())
                    ++left;
                ::close(ends[1]);
            });
            std::string sent;
            for (int round = 0; round < kRounds; ++round) sent += framed(good) + framed(other);
            std::thread reader([&] {  // until the service has hung up
                char piece[64];
                while (::recv(ends[0], piece, sizeof piece, 0) > 0) {
                }
            });
            for (std::size_t at = 0; at < sent.size(); at += 7)
                require(::send(ends[0], sent.data() + at, std::min<std::size_t>(7, sent.size() - at), 0) > 0,
                        "nobody reads");
            ::shutdown(ends[0], SHUT_WR);
            service.join();
            reader.join();
            ::close(ends[0]);
        });
    for (auto& thread : threads) thread.join();
    require(left == kThreads * kRounds, "what is no step was not left over");
    require(session.length() == kThreads * kRounds, "a step was lost on its way");
}

}  // namespace

int main() {
    every_turn_is_taken_once();
    streams_share_a_desk();
    a_desk_serves_many_threads();
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
