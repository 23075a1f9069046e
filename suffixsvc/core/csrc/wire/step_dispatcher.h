// Takes the decode steps of the service's sessions, for every transport: steps of stream messages that it
// parses itself, and steps that Python has parsed with protobuf.
//
//   StreamRequest ──parse──> StepRequests ──┐
//                                           ├──> slots, locked in order of id ──step_all──> answers
//   protobuf ─────Python───> StepRequests ──┘
//
// The registry of the service (suffixsvc/service/sessions/registry.py) owns the sessions; a slot holds
// what the dispatcher needs of one. A thread that works on a session, here or in Python, holds the mutex
// of its slot.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/sync/instrumented_mutex.h"
#include "draft/session/session_stepper.h"
#include "wire/wire_codec.h"

namespace suffixsvc {

// All members but `last_active` are guarded by the mutex.
struct SessionSlot {
    std::mutex mutex;
    SessionStepper* stepper = nullptr;      // null while no session is attached
    std::shared_ptr<const CostCurve> cost;  // cost curve up to the longest allowed draft
    std::uint64_t seq = 0;                  // sequence number of the last answered request
    std::optional<std::string> answer;      // its answer, if it was a step: a StepBatchReply of one item
    std::atomic<double> last_active{0.0};   // in seconds of the caller's clock
};

// A serialised StepBatchReply of one item, or why the step was refused without a change.
using StepAnswer = std::variant<std::string, StepOutcome>;

struct DispatchReply {
    std::string bytes;              // a StreamReply, if no step was refused
    std::vector<StepAnswer> items;  // the answers by index in the batch, if one was
};

// Sessions are found by scope and id: callers choose the ids, and those of different scopes (principals) are
// unrelated.
class StepDispatcher {
  public:
    // `sources`: see pack_step_reply. `max_draft`: maximum length of a draft.
    StepDispatcher(std::size_t max_draft, std::string sources);

    // `key`: the scope of a session, then its id.
    void add(const std::string& key, std::shared_ptr<SessionSlot> slot);
    void remove(const std::string& key);
    // Takes steps of one scope in parallel on all cores; returns the answer to each. A refused step does not
    // affect the others.
    std::vector<StepAnswer> step(std::span<const StepRequest> requests, double now, std::string_view scope);
    // The reply to a serialised StreamRequest, empty for one that wants none; nullopt, without a change, for
    // anything but plain steps. Accepts arbitrary bytes.
    std::optional<DispatchReply> answer(std::string_view request, double now, std::string_view scope);
    // From now on answer() returns nullopt.
    void close() { closed_ = true; }

  private:
    std::atomic<bool> closed_{false};
    std::size_t max_draft_;
    std::string sources_;
    InstrumentedMutex<LockKind::dispatcher, std::shared_mutex> mutex_;
    std::unordered_map<std::string, std::shared_ptr<SessionSlot>> slots_;  // guarded by mutex_
};

// Whether TreeMode::automatic drafts a tree of at most `max_tokens`: only where a drafted token is cheap do
// branches pay off. `cost` has at least one entry.
bool trees_pay(const CostCurve& cost, std::size_t max_tokens);

}  // namespace suffixsvc
