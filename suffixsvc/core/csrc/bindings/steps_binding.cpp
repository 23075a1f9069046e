// Python binding of steps: strict types in, arrays or wire bytes out. The GIL is released once per call,
// however many sessions it steps. Contains no logic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings/cost_curve.h"
#include "bindings/draft_binding.h"
#include "draft/session_stepper.h"
#include "wire/step_dispatcher.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

using Tokens = nb::ndarray<const Token, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Costs = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object step_result(SessionStepper& stepper, const StepArguments& arguments, const nb::bytes& sources) {
    StepOutcome o;
    {
        nb::gil_scoped_release release;
        o = stepper.step(arguments);
    }
    if (o.status != StepStatus::done) return nb::cast(std::move(o));
    return columns(o.draft, view(sources));
}

}  // namespace

void bind_steps(nb::module_& m) {
    nb::class_<StepCounters>(m, "StepCounters")
        .def(nb::init<>())
        .def_prop_ro("steps", [](const StepCounters& c) { return c.steps.load(); })
        .def_prop_ro("drafts", [](const StepCounters& c) { return c.drafts.load(); })
        .def_prop_ro("drafted", [](const StepCounters& c) { return c.drafted.load(); })
        .def_prop_ro("accepted", [](const StepCounters& c) { return c.accepted.load(); });

    nb::class_<Curve>(m, "Curve")
        .def(
            "__init__",
            [](Curve* self, Costs cost) {
                if (cost.shape(0) == 0) throw nb::value_error("cost must have at least one entry");
                new (self) Curve{
                    std::make_shared<const CostCurve>(CostCurve(cost.data(), cost.data() + cost.shape(0)))};
            },
            "cost"_a)
        .def("trees_pay", [](const Curve& self) { return trees_pay(*self.cost); });

    // A step that was refused; a step that was taken is returned as its draft.
    nb::class_<StepOutcome>(m, "Refusal")
        .def_prop_ro("status", [](const StepOutcome& o) { return static_cast<int>(o.status); })
        .def_ro("length", &StepOutcome::length)
        .def_ro("position", &StepOutcome::position)
        .def_ro("have", &StepOutcome::have)
        .def_ro("got", &StepOutcome::got)
        .def_ro("reason", &StepOutcome::reason)
        .def_ro("last_seq", &StepOutcome::last_seq);

    nb::class_<SessionStepper>(m, "SessionStepper")
        .def(nb::init<Session&, std::shared_ptr<StepCounters>, std::size_t>(), "session"_a, "counters"_a,
             "max_tokens"_a, nb::keep_alive<1, 2>())
        .def(
            "step",
            [](SessionStepper& self, Tokens tokens, std::int64_t at, std::size_t max_tokens,
               const Curve& curve, bool tree, std::int32_t width, std::int32_t accepted,
               nb::bytes sources) -> nb::object {
                StepArguments a;
                a.tokens = {tokens.data(), tokens.shape(0)};
                a.at = at;
                a.max_tokens = max_tokens;
                a.cost = curve.cost;
                a.tree = tree;
                a.width = width;
                a.accepted = accepted;
                return step_result(self, a, sources);
            },
            "tokens"_a, "at"_a, "max_tokens"_a, "curve"_a, "tree"_a, "width"_a, "accepted"_a, "sources"_a)
        .def(
            "draft_after",
            [](SessionStepper& self, Tokens after, std::size_t max_tokens, const Curve& curve, bool tree,
               const DraftBounds& bounds, nb::bytes sources) -> nb::object {
                StepArguments a;
                a.after = {after.data(), after.shape(0)};
                a.max_tokens = max_tokens;
                a.cost = curve.cost;
                a.tree = tree;
                a.bounds = bounds;
                return step_result(self, a, sources);
            },
            "after"_a, "max_tokens"_a, "curve"_a, "tree"_a, "bounds"_a, "sources"_a)
        .def("set_closed", &SessionStepper::set_closed, "closed"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("forget_draft", &SessionStepper::forget_draft, nb::call_guard<nb::gil_scoped_release>());
}
