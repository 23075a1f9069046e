// Python binding of the dispatcher: bytes or parsed steps in, bytes out. The GIL is released once per
// message; on the direct socket once for as many messages as the dispatcher can answer. Contains no logic.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings/cost_curve.h"
#include "wire/framed_connection.h"
#include "wire/step_dispatcher.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

nb::object to_bytes(const std::optional<std::string>& data) {
    if (!data) return nb::none();
    return nb::bytes(data->data(), data->size());
}

nb::list to_list(std::vector<StepAnswer> answers) {
    nb::list items;
    for (StepAnswer& answer : answers)
        if (const auto* bytes = std::get_if<std::string>(&answer))
            items.append(nb::bytes(bytes->data(), bytes->size()));
        else
            items.append(nb::cast(std::get<StepOutcome>(std::move(answer))));
    return items;
}

// (session_id, seq, token bytes, at, max_draft_tokens, tree mode, width, accepted, curve or None)
constexpr std::size_t kRequestFields = 9;

nb::list step(StepDispatcher& self, nb::list requests, double now) {
    const std::size_t n = requests.size();
    std::vector<std::string> ids(n);
    std::vector<StepRequest> steps(n);
    for (std::size_t i = 0; i < n; ++i) {
        const auto fields = nb::cast<nb::tuple>(requests[i]);
        if (fields.size() != kRequestFields) throw nb::type_error("a step request must have nine fields");
        StepRequest& step = steps[i];
        ids[i] = nb::cast<std::string>(fields[0]);
        step.session_id = ids[i];
        step.seq = nb::cast<std::uint64_t>(fields[1]);
        const auto tokens = nb::cast<nb::bytes>(fields[2]);  // `requests` keeps it alive
        step.tokens = {tokens.c_str(), tokens.size()};
        step.at = nb::cast<std::int64_t>(fields[3]);
        step.max_draft_tokens = nb::cast<std::int32_t>(fields[4]);
        step.tree = static_cast<TreeMode>(nb::cast<int>(fields[5]));
        step.width = nb::cast<std::int32_t>(fields[6]);
        step.accepted = nb::cast<std::int32_t>(fields[7]);
        if (!fields[8].is_none()) step.cost = nb::cast<const Curve&>(fields[8]).cost;
    }
    std::vector<StepAnswer> answers;
    {
        nb::gil_scoped_release release;
        answers = self.step(steps, now);
    }
    return to_list(std::move(answers));
}

nb::object items_or_none(std::vector<StepAnswer> answers) {
    if (answers.empty()) return nb::none();
    return to_list(std::move(answers));
}

}  // namespace

void bind_step_dispatcher(nb::module_& m) {
    // The fields of a slot may be accessed while its mutex is held: `with slot`.
    nb::class_<SessionSlot>(m, "SessionSlot")
        .def(nb::init<>())
        .def(
            "__enter__", [](SessionSlot& s) { s.mutex.lock(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("__exit__", [](SessionSlot& s, nb::args) { s.mutex.unlock(); })
        .def(
            "attach", [](SessionSlot& s, SessionStepper& stepper) { s.stepper = &stepper; }, "stepper"_a,
            nb::keep_alive<1, 2>())
        .def("detach", [](SessionSlot& s) { s.stepper = nullptr; })
        .def(
            "set_cost",
            [](SessionSlot& s, const Curve& curve) {
                s.cost = curve.cost;
                s.truncated_cost.reset();
            },
            "curve"_a)
        .def(
            "record_append",
            [](SessionSlot& s, std::uint64_t seq) {
                s.seq = seq;
                s.answer.reset();
            },
            "seq"_a)
        .def_prop_ro("seq", [](const SessionSlot& s) { return s.seq; })
        .def_prop_ro("answer", [](const SessionSlot& s) { return to_bytes(s.answer); })
        .def_prop_rw(
            "last_active", [](const SessionSlot& s) { return s.last_active.load(); },
            [](SessionSlot& s, double now) { s.last_active = now; });

    nb::class_<StepDispatcher>(m, "StepDispatcher")
        .def(
            "__init__",
            [](StepDispatcher* self, std::size_t max_draft, nb::bytes sources) {
                new (self) StepDispatcher(max_draft, std::string(sources.c_str(), sources.size()));
            },
            "max_draft"_a, "sources"_a)
        .def("add", &StepDispatcher::add, "session_id"_a, "slot"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("remove", &StepDispatcher::remove, "session_id"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "answer",
            [](StepDispatcher& self, nb::bytes request, double now) -> nb::object {
                std::optional<DispatchReply> reply;
                {
                    nb::gil_scoped_release release;
                    reply = self.answer({request.c_str(), request.size()}, now);
                }
                if (!reply) return nb::none();
                if (reply->items.empty()) return nb::bytes(reply->bytes.data(), reply->bytes.size());
                return to_list(std::move(reply->items));
            },
            "request"_a, "now"_a)
        .def("step", &step, "requests"_a, "now"_a)
        .def("close", &StepDispatcher::close);

    nb::class_<FramedConnection>(m, "FramedConnection")
        .def(nb::init<StepDispatcher&, int, std::size_t>(), "dispatcher"_a, "socket"_a, "max_bytes"_a,
             nb::keep_alive<1, 2>())
        .def("next", [](FramedConnection& self) -> nb::object {
            UnhandledMessage found;
            {
                nb::gil_scoped_release release;
                found = self.next();
            }
            switch (found.kind) {
                case UnhandledMessage::Kind::end:
                    return nb::none();
                case UnhandledMessage::Kind::too_long:
                    return nb::int_(found.length);
                case UnhandledMessage::Kind::message:
                    break;
            }
            return nb::make_tuple(nb::bytes(found.message.data(), found.message.size()),
                                  items_or_none(std::move(found.items)));
        });
}
