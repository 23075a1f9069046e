// Python binding of steps and of their dispatcher: strict types, bytes or parsed steps in, arrays or wire
// bytes out. The GIL is released once per call, however many sessions it steps. Contains no logic.
#include "bindings/convert.h"
#include "draft/session/session_stepper.h"
#include "wire/step_dispatcher.h"

using namespace suffixsvc;

namespace {

// A draft, or why the step was refused.
using StepResult = std::variant<std::monostate, Columns::value_type, StepOutcome>;
using Answer = std::variant<nb::bytes, StepOutcome>;
// (session_id, seq, token bytes, at, max_draft_tokens, tree mode, width, accepted, curve or None)
using Request = std::tuple<std::string, std::uint64_t, nb::bytes, std::int64_t, std::int32_t, int,
                           std::int32_t, std::int32_t, std::optional<Curve>>;

StepResult step_result(SessionStepper& stepper, const StepArguments& arguments, const nb::bytes& sources) {
    StepOutcome o = released([&] { return stepper.step(arguments); });
    if (o.status != StepStatus::done) return o;
    Columns draft = columns(o.draft, view(sources));
    if (draft) return *std::move(draft);
    return {};
}

std::vector<Answer> to_answers(std::vector<StepAnswer> answers) {
    std::vector<Answer> items;
    for (StepAnswer& answer : answers)
        if (const auto* bytes = std::get_if<std::string>(&answer))
            items.emplace_back(to_bytes(*bytes));
        else
            items.emplace_back(std::get<StepOutcome>(std::move(answer)));
    return items;
}

std::vector<Answer> step(StepDispatcher& self, const std::vector<Request>& requests, double now,
                         const std::string& scope) {
    std::vector<StepRequest> steps;
    steps.reserve(requests.size());
    for (const auto& [id, seq, tokens, at, max_draft, tree, width, accepted, curve] : requests)
        steps.push_back({id, seq, view(tokens), at, max_draft, static_cast<TreeMode>(tree), width, accepted,
                         curve ? curve->cost : nullptr});
    return to_answers(released([&] { return self.step(steps, now, scope); }));
}

double scaled(const StepCounters::Counter& counter, double unit) {
    return static_cast<double>(counter.load()) * unit;
}

}  // namespace

void suffixsvc::bind_steps(nb::module_& m) {
    nb::class_<WriteSignal>(m, "WriteSignal")
        .def(
            "__init__",
            [](WriteSignal* self, double delay_seconds) {
                if (!(delay_seconds >= 0 && delay_seconds <= 3600))
                    throw nb::value_error("delay_seconds must be from 0 to 3600");
                using Seconds = std::chrono::duration<double>;
                new (self)
                    WriteSignal(std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(delay_seconds)));
            },
            "delay_seconds"_a = 0.0)
        .def("notify", &WriteSignal::notify)
        .def("clear", &WriteSignal::clear)
        .def_prop_ro("descriptor", &WriteSignal::descriptor);

    nb::class_<StepCounters>(m, "StepCounters")
        .def(
            "__init__",
            [](StepCounters* self, std::shared_ptr<WriteSignal> written) {
                new (self) StepCounters;
                self->written = std::move(written);
            },
            "written"_a = nb::none())
        // Named as the fields of suffixsvc.index.namespace_stats.StepCounts; those with a unit are floats.
        .def_prop_ro("num_steps", [](const StepCounters& c) { return c.steps.load(); })
        .def_prop_ro("num_drafts", [](const StepCounters& c) { return c.drafts.load(); })
        .def_prop_ro("num_draft_tokens", [](const StepCounters& c) { return c.drafted.load(); })
        .def_prop_ro("num_accepted_tokens", [](const StepCounters& c) { return c.accepted.load(); })
        .def_prop_ro("num_session_drafts", [](const StepCounters& c) { return c.drafts_by[0].load(); })
        .def_prop_ro("num_namespace_drafts", [](const StepCounters& c) { return c.drafts_by[1].load(); })
        .def_prop_ro("num_session_draft_tokens", [](const StepCounters& c) { return c.drafted_by[0].load(); })
        .def_prop_ro("num_namespace_draft_tokens",
                     [](const StepCounters& c) { return c.drafted_by[1].load(); })
        .def_prop_ro("num_session_accepted_tokens",
                     [](const StepCounters& c) { return c.accepted_by[0].load(); })
        .def_prop_ro("num_namespace_accepted_tokens",
                     [](const StepCounters& c) { return c.accepted_by[1].load(); })
        .def_prop_ro("num_no_context", [](const StepCounters& c) { return c.no_context.load(); })
        .def_prop_ro("num_not_worth_cost", [](const StepCounters& c) { return c.not_worth_cost.load(); })
        .def_prop_ro("num_over_limit", [](const StepCounters& c) { return c.over_limit.load(); })
        .def_prop_ro("num_off", [](const StepCounters& c) { return c.off.load(); })
        .def_prop_ro("expected_tokens",
                     [](const StepCounters& c) { return scaled(c.expected_millionths, 1e-6); })
        .def_prop_ro("verify_steps", [](const StepCounters& c) { return scaled(c.verify_millionths, 1e-6); })
        .def_prop_ro("avoided_seconds", [](const StepCounters& c) { return scaled(c.avoided_ns, 1e-9); })
        .def_prop_ro("verify_seconds", [](const StepCounters& c) { return scaled(c.verify_ns, 1e-9); });

    // Named as the fields of suffixsvc.service.sessions.probes.ProbeStats.
    nb::class_<ProbeCounts>(m, "ProbeCounts")
        .def_ro("drafts", &ProbeCounts::drafts)
        .def_ro("drafted_tokens", &ProbeCounts::drafted)
        .def_ro("expected_matches", &ProbeCounts::expected)
        .def_ro("matched_tokens", &ProbeCounts::matched)
        .def_ro("unanswered_tokens", &ProbeCounts::unanswered)
        .def_ro("open_tokens", &ProbeCounts::open)
        .def_ro("refused_steps", &ProbeCounts::refused)
        .def_ro("excess", &ProbeCounts::excess);

    nb::class_<ProbeMeter>(m, "ProbeMeter")
        .def(nb::init<>())
        .def("set_limit", &ProbeMeter::set_limit, "limit"_a)
        .def("counts", &ProbeMeter::counts);

    nb::class_<Curve>(m, "Curve")
        .def(
            "__init__",
            [](Curve* self, std::span<const double> cost) {
                if (cost.empty()) throw nb::value_error("cost must have at least one entry");
                new (self) Curve{std::make_shared<const CostCurve>(cost.begin(), cost.end())};
            },
            "cost"_a)
        .def(
            "trees_pay",
            [](const Curve& self, std::size_t max_tokens) { return trees_pay(*self.cost, max_tokens); },
            "max_tokens"_a);

    // A step that was refused; a step that was taken is returned as its draft.
    nb::class_<StepOutcome>(m, "Refusal")
        .def_prop_ro("status", [](const StepOutcome& o) { return static_cast<int>(o.status); })
        .def_ro("length", &StepOutcome::length)
        .def_prop_ro("retry_after", [](const StepOutcome& o) { return o.probing.seconds; })
        .def_prop_ro("excess", [](const StepOutcome& o) { return o.probing.excess; })
        .def_prop_ro("limit", [](const StepOutcome& o) { return o.probing.limit; })
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
            [](SessionStepper& self, const StepTokens& tokens, std::int64_t at, std::size_t max_tokens,
               const Curve& curve, bool tree, std::int32_t width, std::int32_t accepted, nb::bytes sources) {
                const StepArguments a{.tokens = tokens.view(),
                                      .at = at,
                                      .max_tokens = max_tokens,
                                      .cost = curve.cost,
                                      .tree = tree,
                                      .width = width,
                                      .accepted = accepted};
                return step_result(self, a, sources);
            },
            "tokens"_a, "at"_a, "max_tokens"_a, "curve"_a, "tree"_a, "width"_a, "accepted"_a, "sources"_a)
        .def(
            "draft_after",
            [](SessionStepper& self, std::span<const Token> after, std::size_t max_tokens, const Curve& curve,
               bool tree, const DraftBounds& bounds, nb::bytes sources) {
                const StepArguments a{.max_tokens = max_tokens,
                                      .cost = curve.cost,
                                      .tree = tree,
                                      .bounds = bounds,
                                      .after = after};
                return step_result(self, a, sources);
            },
            "after"_a, "max_tokens"_a, "curve"_a, "tree"_a, "bounds"_a, "sources"_a)
        .def("set_closed", &SessionStepper::set_closed, "closed"_a, Released())
        .def("forget_draft", &SessionStepper::forget_draft, Released())
        .def("stop_learning", &SessionStepper::stop_learning, Released())
        .def("admit", &SessionStepper::admit, "tokens"_a, Released())
        .def("set_meter", &SessionStepper::set_meter, "meter"_a.none(), Released());

    // The fields of a slot may be accessed while its mutex is held: `with slot`.
    nb::class_<SessionSlot>(m, "SessionSlot")
        .def(nb::init<>())
        .def(
            "__enter__", [](SessionSlot& s) { s.mutex.lock(); }, Released())
        .def(
            "__exit__", [](SessionSlot& s, nb::handle, nb::handle, nb::handle) { s.mutex.unlock(); },
            "type"_a.none(), "error"_a.none(), "traceback"_a.none())
        .def(
            "attach", [](SessionSlot& s, SessionStepper& stepper) { s.stepper = &stepper; }, "stepper"_a,
            nb::keep_alive<1, 2>())
        .def("detach", [](SessionSlot& s) { s.stepper = nullptr; })
        .def(
            "set_cost", [](SessionSlot& s, const Curve& curve) { s.cost = curve.cost; }, "curve"_a)
        .def(
            "record_append",
            [](SessionSlot& s, std::uint64_t seq) {
                s.seq = seq;
                s.answer.reset();
            },
            "seq"_a)
        .def_prop_ro("seq", [](const SessionSlot& s) { return s.seq; })
        .def_prop_ro(
            "answer",
            [](const SessionSlot& s) { return s.answer ? std::optional(to_bytes(*s.answer)) : std::nullopt; })
        .def_prop_rw(
            "last_active", [](const SessionSlot& s) { return s.last_active.load(); },
            [](SessionSlot& s, double now) { s.last_active = now; });

    nb::class_<StepDispatcher>(m, "StepDispatcher")
        .def(
            "__init__",
            [](StepDispatcher* self, std::size_t max_draft, nb::bytes sources) {
                new (self) StepDispatcher(max_draft, std::string(view(sources)));
            },
            "max_draft"_a, "sources"_a)
        .def("add", &StepDispatcher::add, "key"_a, "slot"_a, Released())
        .def("remove", &StepDispatcher::remove, "key"_a, Released())
        .def(
            "answer",
            [](StepDispatcher& self, nb::bytes request, double now,
               const std::string& scope) -> std::variant<std::monostate, nb::bytes, std::vector<Answer>> {
                std::optional<DispatchReply> reply =
                    released([&] { return self.answer(view(request), now, scope); });
                if (!reply) return {};
                if (reply->items.empty()) return to_bytes(reply->bytes);
                return to_answers(std::move(reply->items));
            },
            "request"_a, "now"_a, "scope"_a)
        .def("step", &step, "requests"_a, "now"_a, "scope"_a)
        .def("close", &StepDispatcher::close);
}
