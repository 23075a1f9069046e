// Python binding of the core: strict array types in, plain arrays out; the GIL is released around every call
// that does work. Contains no logic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "base/map_guard.h"
#include "bindings/draft_binding.h"
#include "bindings/ngram_binding.h"
#include "bindings/segment_binding.h"
#include "draft/session.h"
#include "index/index.h"
#include "segment/segment.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

// C-contiguous int32 of rank 1, never converted silently.
using Tokens = nb::ndarray<const Token, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Costs = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const Token> span_of(const Tokens& t) { return {t.data(), t.shape(0)}; }

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T>&& values) {
    auto* keep = new std::vector<T>(std::move(values));
    nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(keep->data(), {keep->size()}, owner);
}

std::uint32_t require_writer(std::uint32_t writer) {
    if (writer & kManyWriters) throw std::invalid_argument("writer must be below 2**31");
    return writer;
}

}  // namespace

void bind_steps(nb::module_& m);            // bindings/steps_binding.cpp
void bind_step_dispatcher(nb::module_& m);  // bindings/step_dispatcher_binding.cpp
void bind_words(nb::module_& m);            // bindings/words_binding.cpp

NB_MODULE(_ext, m) {
    m.doc() = "The native core: index, segments and drafting. Import suffixsvc.core instead.";

    bind_segments(m);
    bind_ngrams(m);
    bind_words(m);

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

    nb::class_<Index>(m, "Index")
        .def(nb::init<std::uint32_t>(), "max_context"_a = 64)
        .def(
            "add",
            [](Index& self, Tokens text, std::size_t uncounted, std::uint32_t writer) {
                require_writer(writer);
                nb::gil_scoped_release release;
                self.add_in_batches(span_of(text), uncounted, writer);
            },
            "text"_a, "uncounted"_a, "writer"_a)
        .def(
            "remove",
            [](Index& self, Tokens text, std::size_t uncounted) {
                nb::gil_scoped_release release;
                return self.remove(span_of(text), uncounted);
            },
            "text"_a, "uncounted"_a)
        .def("propagate_counts",
             [](Index& self) {
                 nb::gil_scoped_release release;
                 self.propagate_counts();
             })
        .def(
            "count",
            [](const Index& self, Tokens tokens) {
                nb::gil_scoped_release release;
                const EpochGuard guard;
                return self.count(span_of(tokens));
            },
            "tokens"_a)
        .def(
            "longest_match",
            [](const Index& self, Tokens context) {
                nb::gil_scoped_release release;
                const EpochGuard guard;
                return self.find(span_of(context)).len;
            },
            "context"_a)
        .def(
            "ngrams",
            [](Index& self, std::uint32_t n) {
                std::vector<Token> tokens;
                std::vector<std::uint64_t> counts;
                {
                    nb::gil_scoped_release release;
                    self.propagate_counts();
                    self.ngrams(n, tokens, counts);
                }
                return nb::make_tuple(to_numpy(std::move(tokens)), to_numpy(std::move(counts)));
            },
            "n"_a)
        .def(
            "set_segments",
            [](Index& self, const std::vector<std::shared_ptr<Segment>>& segments) {
                nb::gil_scoped_release release;
                self.segments.set({segments.begin(), segments.end()});
            },
            "segments"_a)
        .def(
            "take_recently_used", [](const Index& self) { return self.recently_used.take(); },
            nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("max_context", &Index::max_context)
        .def("stats",
             [](Index& self) {
                 nb::gil_scoped_release release;
                 self.collect();
                 const std::scoped_lock lock(self.mutex);
                 return self.stats();
             })
        .def(
            "release_segments", [](Index& self) { self.segments.reap(); },
            nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("session_bytes", &Index::session_bytes)
        .def("check", [](const Index& self) {
            nb::gil_scoped_release release;
            return self.check();
        });

    nb::class_<LearnedTables>(m, "LearnedTables")
        .def_static(
            "parse",
            [](nb::bytes data) {
                // The cast: nanobind has no holder of const objects; nothing here changes them.
                return std::const_pointer_cast<LearnedTables>(
                    LearnedTables::parse(std::string(data.c_str(), data.size())));
            },
            "data"_a)
        .def("save", [](const LearnedTables& self) {
            const std::string bytes = self.save();
            return nb::bytes(bytes.data(), bytes.size());
        });

    nb::class_<Learner>(m, "Learner")
        .def(
            "__init__",
            [](Learner* self, std::shared_ptr<LearnedTables> start) { new (self) Learner(std::move(start)); },
            "start"_a.none() = nb::none())
        .def_prop_ro("changed", &Learner::changed)
        .def_prop_ro("own_bytes", &Learner::own_bytes)
        .def("save",
             [](const Learner& self) {
                 const std::string bytes = self.save();
                 return nb::bytes(bytes.data(), bytes.size());
             })
        .def("generalise", &Learner::generalise, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "load",
            [](Learner& self, nb::bytes data) { return self.load(std::string(data.c_str(), data.size())); },
            "data"_a);

    nb::class_<DraftBounds>(m, "DraftBounds")
        .def(
            "__init__",
            [](DraftBounds* self, double min_path_probability, double match_factor, double match_offset,
               std::size_t extra_tokens) {
                new (self) DraftBounds{min_path_probability, match_factor, match_offset, extra_tokens};
            },
            "min_path_probability"_a = DraftBounds().min_path_probability,
            "match_factor"_a = DraftBounds().match_factor, "match_offset"_a = DraftBounds().match_offset,
            "extra_tokens"_a = DraftBounds().extra_tokens);

    nb::class_<Session>(m, "Session")
        .def(nb::init<std::shared_ptr<Index>, std::vector<std::shared_ptr<Index>>, std::shared_ptr<Learner>,
                      std::uint32_t, std::uint32_t>(),
             "own"_a.none(), "reads"_a, "learner"_a, "writer"_a, "tail_tokens"_a)
        .def(
            "append_context",
            [](Session& self, Tokens tokens) {
                nb::gil_scoped_release release;
                self.append_context(span_of(tokens));
            },
            "tokens"_a)
        .def(
            "append",
            [](Session& self, Tokens tokens, bool learns) {
                nb::gil_scoped_release release;
                self.append(span_of(tokens), learns);
            },
            "tokens"_a, "learns"_a)
        .def("record_step", &Session::record_step, "step_cost"_a, "tokens"_a,
             nb::call_guard<nb::gil_scoped_release>())
        .def(
            "draft",
            [](Session& self, std::size_t max_tokens, Costs cost, bool tree, const nb::bytes& sources,
               const DraftBounds& bounds) {
                std::vector<DraftToken> draft;
                {
                    nb::gil_scoped_release release;
                    const CostCurve curve(cost.data(), cost.data() + cost.shape(0));
                    draft = self.draft(max_tokens, curve, tree ? Shape::tree : Shape::chain, bounds);
                }
                return columns(draft, view(sources));
            },
            "max_tokens"_a, "cost"_a, "tree"_a, "sources"_a, "bounds"_a = DraftBounds())
        .def(
            "first_difference",
            [](const Session& self, std::size_t at, Tokens tokens) {
                nb::gil_scoped_release release;
                return self.first_difference(at, span_of(tokens));
            },
            "at"_a, "tokens"_a)
        .def(
            "text",
            [](const Session& self, std::size_t from, std::size_t to) {
                std::vector<Token> text;
                {
                    nb::gil_scoped_release release;
                    text = self.text(from, to);
                }
                return to_numpy(std::move(text));
            },
            "first"_a, "last"_a)
        .def(
            "ngrams",
            [](const Session& self, std::uint32_t n) {
                std::vector<Token> tokens;
                std::vector<std::uint64_t> counts;
                {
                    nb::gil_scoped_release release;
                    self.ngrams(n, tokens, counts);
                }
                return nb::make_tuple(to_numpy(std::move(tokens)), to_numpy(std::move(counts)));
            },
            "n"_a)
        .def(
            "inspect",
            [](Session& self, int width) {
                Session::Inspection inspect;
                {
                    nb::gil_scoped_release release;
                    inspect = self.inspect(width);
                }
                nb::list contexts, followed;
                for (const ContextVotes& c : inspect.contexts)
                    contexts.append(
                        nb::make_tuple(c.source, c.order, c.match_len, c.total, c.newest, c.votes));
                for (std::size_t s = 0; s < kSources; ++s)
                    followed.append(nb::make_tuple(inspect.predictions.match[s],
                                                   inspect.predictions.match_len[s],
                                                   inspect.predictions.recovery[s]));
                return nb::make_tuple(inspect.candidates, contexts, followed);
            },
            "width"_a)
        .def("output_runs", &Session::output_runs, nb::call_guard<nb::gil_scoped_release>())
        .def("retract", &Session::retract, nb::call_guard<nb::gil_scoped_release>())
        .def("__len__", &Session::length, nb::call_guard<nb::gil_scoped_release>())
        .def("end", &Session::end, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("gain", &Session::gain, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("held_bytes", &Session::held_bytes);
    bind_steps(m);
    bind_step_dispatcher(m);

    m.def("longest_holds", [] {
        nb::dict all;
        for (std::size_t k = 0; k < kLockNames.size(); ++k) {
            const lock_holds::HoldMaxima& maxima = lock_holds::maxima(static_cast<LockKind>(k));
            all[kLockNames[k]] =
                nb::make_tuple(static_cast<double>(maxima.ticks.load()) * lock_holds::seconds_per_tick(),
                               maxima.work.load());
        }
        return all;
    });
    m.def("reinstall_sigbus_handler", &reinstall_sigbus_handler);
    m.def("reset_holds", &lock_holds::reset, "processor_time"_a = false);
}
