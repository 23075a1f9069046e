// Where the steps of a stream are answered without Python: bytes of the wire in, bytes of the wire out.
//
//   StreamRequest ──parse──> seats, locked in the order of their ids ──step_all──> StreamReply
//        │ anything but plain steps of live sessions: not answered here, and nothing was touched
//
// The registry of the service (suffixsvc/service/registry.py) owns the sessions; a seat is what the desk has
// to know of one. Whoever works on a session, here or in Python, holds its seat's turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holds.h"
#include "stepper.h"

namespace suffixsvc {

// Everything but the time is guarded by the turn.
struct Seat {
    std::mutex turn;
    Stepper* stepper = nullptr;             // null before the session's life and after it
    std::shared_ptr<const CostCurve> cost;  // to the longest draft there may be
    std::shared_ptr<const CostCurve> cut;   // the same to the last draft's length
    std::uint64_t seq = 0;                  // the last one answered
    std::optional<std::string> answer;      // to it, if it was a step: a StepBatchReply of one item
    std::atomic<double> touched{0.0};       // seconds of the caller's clock
};

struct DeskReply {
    std::string bytes;  // all items were answered: a StreamReply
    // Some were refused: the answers of the others by their place, nothing for those that Python has to tell
    // why. Nothing was applied for them.
    std::vector<std::optional<std::string>> items;
};

class Desk {
  public:
    // `sources`: see pack_step_reply. `max_draft`: longer drafts are cut.
    Desk(std::size_t max_draft, std::string sources);

    void add(const std::string& session_id, std::shared_ptr<Seat> seat);
    void remove(const std::string& session_id);
    // The reply to a serialised StreamRequest; nothing where it is not for the desk. Any bytes may come.
    std::optional<DeskReply> answer(std::string_view request, double now);
    // From now on nothing is for the desk.
    void close() { closed_ = true; }

  private:
    std::size_t seated();

    std::atomic<bool> closed_{false};
    std::size_t max_draft_;
    std::string sources_;
    HeldMutex<LockKind::desk, std::shared_mutex> mutex_;
    std::unordered_map<std::string, std::shared_ptr<Seat>> seats_;  // guarded by mutex_
};

}  // namespace suffixsvc
