// Python binding of the core: strict array types in, plain arrays out; the GIL is released around every call
// that does work. Contains no logic.
#include <mutex>

#include "base/files/map_guard.h"
#include "bindings/convert.h"
#include "index/index.h"
#include "segment/query/segment.h"

using namespace suffixsvc;

namespace {

auto arrays_of(NgramCounts&& found) {
    return std::pair(to_numpy(std::move(found.tokens)), to_numpy(std::move(found.counts)));
}

// Candidates; contexts as (source, order, match_len, total, newest, votes); and by source (match, match_len,
// recovery).
auto inspect(Session& self, int width) {
    const Session::Inspection found = released([&] { return self.inspect(width); });
    std::vector<std::tuple<int, int, std::uint32_t, std::uint32_t, Token, std::vector<std::uint32_t>>>
        contexts;
    std::vector<std::tuple<Token, std::uint32_t, Token>> followed;
    for (const ContextVotes& c : found.contexts)
        contexts.emplace_back(c.source, c.order, c.match_len, c.total, c.newest, c.votes);
    const Predictions& p = found.predictions;
    for (std::size_t s = 0; s < kSources; ++s)
        followed.emplace_back(p.match[s], p.match_len[s], p.recovery[s]);
    return std::tuple(found.candidates, contexts, followed);
}

auto longest_holds() {
    nb::typed<nb::dict, nb::str, std::pair<double, std::uint64_t>> all;
    for (std::size_t k = 0; k < kLockNames.size(); ++k) {
        const lock_holds::HoldMaxima& maxima = lock_holds::maxima(static_cast<LockKind>(k));
        all[kLockNames[k]] = std::pair(
            static_cast<double>(maxima.ticks.load()) * lock_holds::seconds_per_tick(), maxima.work.load());
    }
    return all;
}

}  // namespace

Columns suffixsvc::columns(const std::vector<DraftToken>& draft, std::string_view sources) {
    const std::size_t n = draft.size();
    if (n == 0) return std::nullopt;
    Columns::value_type out;
    auto& [tokens, parents, probs, names, match_lens] = out;
    for (auto* each : {&tokens, &parents}) each->reserve(n);
    probs.reserve(n), names.reserve(n), match_lens.reserve(n);
    for (const DraftToken& token : draft) {
        tokens.push_back(token.token);
        parents.push_back(token.parent);
        probs.push_back(token.p);
        names.push_back(token.source < sources.size() ? static_cast<std::uint8_t>(sources[token.source]) : 0);
        match_lens.push_back(static_cast<std::uint32_t>(token.match_len));
    }
    return out;
}

NB_MODULE(_ext, m) {
    // A cache that was not closed has threads, which hold objects to the end of the process: not a leak.
    nb::set_leak_warnings(false);
    m.doc() = "The native core: index, segments and drafting. Import suffixsvc.core instead.";

    bind_driver(m);
    bind_segments(m);
    bind_ngrams(m);
    bind_publishing(m);

    nb::class_<IndexStats>(m, "IndexStats")
        .def_ro("nodes", &IndexStats::nodes)
        .def_ro("edges", &IndexStats::edges)
        .def_ro("tokens", &IndexStats::tokens)
        .def_ro("bytes", &IndexStats::bytes)
        .def_ro("used", &IndexStats::used)
        .def_ro("appended", &IndexStats::appended)
        .def_ro("visited", &IndexStats::visited)
        .def_ro("session_tokens", &IndexStats::session_tokens)
        .def_ro("session_bytes", &IndexStats::session_bytes);

    // nanobind constructs the last guard first: the epoch is held only while the GIL is released
    using Reading = nb::call_guard<EpochGuard, nb::gil_scoped_release>;
    nb::class_<Index>(m, "Index")
        .def(nb::init<std::uint32_t>(), "max_context"_a = 64)
        .def("add", &Index::add, "text"_a, "uncounted"_a, "writer"_a, Released())
        .def("remove", &Index::remove, "text"_a, "uncounted"_a, Released())
        .def("propagate_counts", &Index::propagate_counts, Released())
        .def("count", &Index::count, "tokens"_a, Reading())
        .def(
            "longest_match",
            [](const Index& self, std::span<const Token> context) { return self.find(context).len; },
            "context"_a, Reading())
        .def(
            "ngrams",
            [](Index& self, std::uint32_t n) {
                return arrays_of(released([&] {
                    self.propagate_counts();
                    return self.ngrams(n);
                }));
            },
            "n"_a)
        .def(
            "set_segments",
            [](Index& self, const std::vector<std::shared_ptr<Segment>>& segments) {
                self.segments.set({segments.begin(), segments.end()});
            },
            "segments"_a, Released())
        .def(
            "take_recently_used", [](const Index& self) { return self.recently_used.take(); }, Released())
        .def_prop_rw(
            "drafting", [](const Index& self) { return self.drafting.load(); },
            [](Index& self, bool on) { self.drafting.store(on); })
        .def_prop_ro("max_context", &Index::max_context)
        .def(
            "stats",
            [](Index& self) {
                self.collect();
                const std::scoped_lock lock(self.mutex);
                return self.stats();
            },
            Released())
        .def(
            "release_segments", [](Index& self) { self.segments.reap(); }, Released())
        .def_prop_ro("session_bytes", &Index::session_bytes)
        .def("check", &Index::check, Released());

    nb::class_<LearnedTables>(m, "LearnedTables")
        .def_static(
            "parse", [](nb::bytes data) { return LearnedTables::parse(view(data)); }, "data"_a,
            nb::sig("def parse(data: bytes) -> LearnedTables | None"));

    nb::class_<Learner>(m, "Learner")
        .def(nb::init<std::shared_ptr<LearnedTables>>(), "start"_a.none() = nb::none())
        .def_prop_ro("changed", &Learner::changed)
        .def_prop_ro("own_bytes", &Learner::own_bytes)
        .def("save", [](const Learner& self) { return to_bytes(self.save()); })
        .def(
            "difference",
            [](const Learner& self, nb::bytes base) {
                return to_bytes(released([&] { return self.difference(view(base)); }));
            },
            "base"_a)
        .def(
            "merge",
            [](Learner& self, nb::bytes difference) {
                return released([&] { return self.merge(view(difference)); });
            },
            "difference"_a)
        .def("generalise", &Learner::generalise, Released())
        .def("load", [](Learner& self, nb::bytes data) { return self.load(view(data)); }, "data"_a);

    constexpr DraftBounds kUnbounded;
    nb::class_<DraftBounds>(m, "DraftBounds")
        .def(nb::init<double, double, double, std::size_t>(),
             "min_path_probability"_a = kUnbounded.min_path_probability,
             "match_factor"_a = kUnbounded.match_factor, "match_offset"_a = kUnbounded.match_offset,
             "extra_tokens"_a = kUnbounded.extra_tokens);

    nb::class_<Session>(m, "Session")
        .def(nb::init<std::shared_ptr<Index>, std::vector<std::shared_ptr<Index>>, std::shared_ptr<Learner>,
                      std::uint32_t, std::uint32_t>(),
             "own"_a.none(), "reads"_a, "learner"_a, "writer"_a, "tail_tokens"_a)
        .def("read_from", &Session::read_from, "namespaces"_a, "learner"_a, Released())
        .def("append_context", &Session::append_context, "tokens"_a, Released())
        .def("append", &Session::append, "tokens"_a, "learns"_a, Released())
        .def("record_step", &Session::record_step, "step_cost"_a, "tokens"_a, Released())
        .def(
            "draft",
            [](Session& self, std::size_t max_tokens, std::span<const double> cost, bool tree,
               const nb::bytes& sources, const DraftBounds& bounds) {
                const auto draft = released([&] {
                    const CostCurve curve(cost.begin(), cost.end());
                    return self.draft(max_tokens, curve, tree ? Shape::tree : Shape::chain, bounds);
                });
                return columns(draft, view(sources));
            },
            "max_tokens"_a, "cost"_a, "tree"_a, "sources"_a, "bounds"_a = kUnbounded)
        .def(
            "text",
            [](const Session& self, std::size_t from, std::size_t to) {
                return to_numpy(released([&] { return self.text(from, to); }));
            },
            "first"_a, "last"_a)
        .def(
            "ngrams",
            [](const Session& self, std::uint32_t n) {
                return arrays_of(released([&] { return self.ngrams(n); }));
            },
            "n"_a)
        .def("inspect", &inspect, "width"_a)
        .def("output_runs", &Session::output_runs, Released())
        .def("retract", &Session::retract, Released())
        .def("__len__", &Session::length, Released())
        .def("end", &Session::end, Released())
        .def_prop_ro("gain", &Session::gain, Released())
        .def_prop_ro("held_bytes", &Session::held_bytes);
    bind_steps(m);

    m.def("longest_holds", &longest_holds);
    m.def("reinstall_sigbus_handler", &reinstall_sigbus_handler);
    m.def("reset_holds", &lock_holds::reset, "processor_time"_a = false);
}
