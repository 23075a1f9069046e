// Glue for the desk: bytes in, bytes out, the GIL released once a message; on the direct socket once for as
// many messages as the desk can answer. No logic lives here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "curve.h"
#include "desk.h"
#include "desk_stream.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

nb::object to_bytes(const std::optional<std::string>& data) {
    if (!data) return nb::none();
    return nb::bytes(data->data(), data->size());
}

nb::object to_list(const std::vector<std::optional<std::string>>& answers) {
    if (answers.empty()) return nb::none();
    nb::list items;
    for (const auto& item : answers) items.append(to_bytes(item));
    return std::move(items);
}

}  // namespace

void bind_desk(nb::module_& m) {
    // A seat's fields may be touched by whoever holds its turn: `with seat`.
    nb::class_<Seat>(m, "Seat")
        .def(nb::init<>())
        .def(
            "acquire", [](Seat& s) { s.turn.lock(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("release", [](Seat& s) { s.turn.unlock(); })
        .def(
            "__enter__", [](Seat& s) { s.turn.lock(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("__exit__", [](Seat& s, nb::args) { s.turn.unlock(); })
        .def(
            "sit", [](Seat& s, Stepper& stepper) { s.stepper = &stepper; }, "stepper"_a,
            nb::keep_alive<1, 2>())
        .def("leave", [](Seat& s) { s.stepper = nullptr; })
        .def(
            "set_cost",
            [](Seat& s, const Curve& curve) {
                s.cost = curve.cost;
                s.cut.reset();
            },
            "curve"_a)
        .def(
            "set_answer",
            [](Seat& s, std::uint64_t seq, nb::object answer) {
                s.seq = seq;
                s.answer.reset();
                if (answer.is_none()) return;
                const auto bytes = nb::cast<nb::bytes>(answer);
                s.answer.emplace(bytes.c_str(), bytes.size());
            },
            "seq"_a, "answer"_a.none())
        .def_prop_ro("seq", [](const Seat& s) { return s.seq; })
        .def_prop_ro("answer", [](const Seat& s) { return to_bytes(s.answer); })
        .def_prop_rw(
            "touched", [](const Seat& s) { return s.touched.load(); },
            [](Seat& s, double now) { s.touched = now; });

    nb::class_<Desk>(m, "Desk")
        .def(
            "__init__",
            [](Desk* self, std::size_t max_draft, nb::bytes sources) {
                new (self) Desk(max_draft, std::string(sources.c_str(), sources.size()));
            },
            "max_draft"_a, "sources"_a)
        .def("add", &Desk::add, "session_id"_a, "seat"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("remove", &Desk::remove, "session_id"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "answer",
            [](Desk& self, nb::bytes request, double now) -> nb::object {
                std::optional<DeskReply> reply;
                {
                    nb::gil_scoped_release release;
                    reply = self.answer({request.c_str(), request.size()}, now);
                }
                if (!reply) return nb::none();
                if (reply->items.empty()) return nb::bytes(reply->bytes.data(), reply->bytes.size());
                return to_list(reply->items);
            },
            "request"_a, "now"_a)
        .def("close", &Desk::close);

    nb::class_<DeskStream>(m, "DeskStream")
        .def(nb::init<Desk&, int, std::size_t>(), "desk"_a, "socket"_a, "most"_a, nb::keep_alive<1, 2>())
        .def("next", [](DeskStream& self) -> nb::object {
            Unanswered found;
            {
                nb::gil_scoped_release release;
                found = self.next();
            }
            switch (found.kind) {
                case Unanswered::Kind::end:
                    return nb::none();
                case Unanswered::Kind::too_long:
                    return nb::int_(found.length);
                case Unanswered::Kind::message:
                    break;
            }
            return nb::make_tuple(nb::bytes(found.message.data(), found.message.size()),
                                  to_list(found.items));
        });
}
