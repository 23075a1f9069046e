// Glue for steps: strict types in, arrays or wire bytes out, the GIL released once a call, however many
// sessions it steps. No logic lives here.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <cstring>

#include "curve.h"
#include "draft_binding.h"
#include "packing.h"
#include "stepper.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

using Tokens = nb::ndarray<const Token, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Costs = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Why a step was not taken.
struct Refusal {
    StepStatus status;
    std::size_t length, position;
    Token have, got;
    std::string reason;
};

Refusal refusal(const StepOutcome& o) {
    return Refusal{o.status, o.length, o.position, o.have, o.got, o.reason};
}

nb::object taken(Stepper& stepper, const StepArguments& arguments, const nb::bytes& sources) {
    StepOutcome o;
    {
        nb::gil_scoped_release release;
        o = stepper.step(arguments);
    }
    if (o.status != StepStatus::done) return nb::cast(refusal(o));
    return columns(o.draft, view(sources));
}

// What one session's step is answered with on the wire.
struct Address {
    std::string session_id;
    std::uint64_t seq;
};

// (stepper, token bytes, at, max_tokens, curve, tree, width, accepted, session_id, seq)
constexpr std::size_t kPlanFields = 10;

nb::list step_batch(nb::list plans, nb::bytes sources) {
    const std::size_t n = plans.size();
    std::vector<PlannedStep> steps;
    std::vector<std::vector<Token>> tokens(n);
    std::vector<Address> addresses;
    std::vector<std::size_t> place(n, n);  // of a plan among the steps; n where its tokens are none
    steps.reserve(n);
    addresses.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
        const auto plan = nb::cast<nb::tuple>(plans[i]);
        if (plan.size() != kPlanFields) throw nb::type_error("a planned step has ten fields");
        const auto data = nb::cast<nb::bytes>(plan[1]);
        tokens[i].resize(data.size() / sizeof(Token));
        std::memcpy(tokens[i].data(), data.c_str(), tokens[i].size() * sizeof(Token));
        if constexpr (std::endian::native == std::endian::big)
            for (Token& t : tokens[i])
                t = static_cast<Token>(__builtin_bswap32(static_cast<std::uint32_t>(t)));
        if (data.size() % sizeof(Token) != 0) continue;
        StepArguments a;
        a.tokens = tokens[i];
        a.at = nb::cast<std::int64_t>(plan[2]);
        a.max_tokens = nb::cast<std::size_t>(plan[3]);
        a.cost = nb::cast<const Curve&>(plan[4]).cost;
        a.tree = nb::cast<bool>(plan[5]);
        a.width = nb::cast<std::int32_t>(plan[6]);
        a.accepted = nb::cast<std::int32_t>(plan[7]);
        addresses.push_back({nb::cast<std::string>(plan[8]), nb::cast<std::uint64_t>(plan[9])});
        place[i] = steps.size();
        steps.push_back(PlannedStep{nb::cast<Stepper*>(plan[0]), std::move(a), {}});
    }
    std::vector<std::string> replies(steps.size());
    {
        nb::gil_scoped_release release;
        step_all(steps);
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const StepOutcome& o = steps[i].outcome;
            if (o.status == StepStatus::done)
                replies[i] = pack_step_reply(addresses[i].session_id, addresses[i].seq, o.draft, o.length,
                                             view(sources));
        }
    }
    nb::list out;
    for (std::size_t i = 0; i < n; ++i) {
        if (place[i] == n)
            out.append(Refusal{StepStatus::not_tokens, 0, 0, 0, 0, {}});
        else if (const StepOutcome& o = steps[place[i]].outcome; o.status != StepStatus::done)
            out.append(refusal(o));
        else
            out.append(nb::bytes(replies[place[i]].data(), replies[place[i]].size()));
    }
    return out;
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
                if (cost.shape(0) == 0) throw nb::value_error("a cost curve has an entry");
                new (self) Curve{
                    std::make_shared<const CostCurve>(CostCurve(cost.data(), cost.data() + cost.shape(0)))};
            },
            "cost"_a);

    nb::class_<Refusal>(m, "Refusal")
        .def_prop_ro("status", [](const Refusal& r) { return static_cast<int>(r.status); })
        .def_ro("length", &Refusal::length)
        .def_ro("position", &Refusal::position)
        .def_ro("have", &Refusal::have)
        .def_ro("got", &Refusal::got)
        .def_ro("reason", &Refusal::reason);

    nb::class_<Stepper>(m, "Stepper")
        .def(nb::init<Session&, std::shared_ptr<StepCounters>, std::size_t>(), "session"_a, "counters"_a,
             "most"_a, nb::keep_alive<1, 2>())
        .def(
            "step",
            [](Stepper& self, Tokens tokens, std::int64_t at, std::size_t max_tokens, const Curve& curve,
               bool tree, std::int32_t width, std::int32_t accepted, nb::bytes sources) -> nb::object {
                StepArguments a;
                a.tokens = {tokens.data(), tokens.shape(0)};
                a.at = at;
                a.max_tokens = max_tokens;
                a.cost = curve.cost;
                a.tree = tree;
                a.width = width;
                a.accepted = accepted;
                return taken(self, a, sources);
            },
            "tokens"_a, "at"_a, "max_tokens"_a, "curve"_a, "tree"_a, "width"_a, "accepted"_a, "sources"_a)
        .def(
            "draft_after",
            [](Stepper& self, Tokens after, std::size_t max_tokens, const Curve& curve, bool tree,
               const DraftBounds& bounds, nb::bytes sources) -> nb::object {
                StepArguments a;
                a.after = {after.data(), after.shape(0)};
                a.max_tokens = max_tokens;
                a.cost = curve.cost;
                a.tree = tree;
                a.bounds = bounds;
                return taken(self, a, sources);
            },
            "after"_a, "max_tokens"_a, "curve"_a, "tree"_a, "bounds"_a, "sources"_a)
        .def("set_closed", &Stepper::set_closed, "closed"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("forget_draft", &Stepper::forget_draft, nb::call_guard<nb::gil_scoped_release>());

    m.def("step_batch", &step_batch, "plans"_a, "sources"_a);
}
