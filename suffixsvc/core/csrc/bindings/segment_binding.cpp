// Python binding of sealed segments: strict array types in, plain values out; the GIL is released around
// everything that does work. Faults become suffixsvc.core._ext.FileFault(kind, message, expected, got), which
// suffixsvc/core/segments.py turns into the project's errors.
#include "bindings/segment_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "base/crc32c.h"
#include "segment/segment.h"
#include "segment/segment_builder.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> span_of(const Array<T>& a) {
    return {a.data(), a.shape(0)};
}

struct Raised {
    FileFault fault;
};

const char* kind_name(FileFault::Kind kind) {
    switch (kind) {
        case FileFault::Kind::invalid:
            return "invalid";
        case FileFault::Kind::corrupt:
            return "corrupt";
        case FileFault::Kind::foreign:
            return "foreign";
        case FileFault::Kind::full:
            return "full";
        case FileFault::Kind::cancelled:
            return "cancelled";
        default:
            return "io";
    }
}

void raise_if(const FileFault& fault) {
    if (fault) raise_fault(fault);
}

// A level as Python sees it: length, first entry, last entry + 1, all votes, (token, votes) of the strongest
// followers, votes of the requested tokens, (token, LSN) of the newest follower.
using LevelTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                              std::vector<std::pair<Token, std::uint32_t>>, std::vector<std::uint32_t>,
                              std::pair<Token, std::uint64_t>>;

std::vector<LevelTuple> query(const Segment& segment, std::span<const Token> context,
                              std::span<const int> orders, std::size_t width, std::span<const Token> tokens) {
    std::vector<LevelTuple> out;
    // The last tokens one by one, as a session does: each view is the hint for the next.
    SegmentView view;
    for (std::size_t n = context.size() > 3 ? context.size() - 3 : 0; n <= context.size(); ++n)
        segment.find(context.first(n), orders, view, n > 0 ? &view : nullptr);
    SegmentEvidence evidence;
    segment.gather(view, width, evidence);
    std::vector<std::array<std::uint32_t, kMaxLevels>> requested(tokens.size());
    for (std::size_t k = 0; k < tokens.size(); ++k) segment.votes(view, tokens[k], requested[k]);
    for (std::size_t r = 0; r < view.size; ++r) {
        const SegmentLevel& level = view.levels[r];
        std::vector<std::pair<Token, std::uint32_t>> strongest;
        for (std::size_t k = 0; k < evidence.strongest_size[r]; ++k) {
            const std::size_t c = evidence.strongest[r][k];
            strongest.emplace_back(evidence.token[c], evidence.votes[c][r]);
        }
        std::vector<std::uint32_t> votes;
        for (const auto& each : requested) votes.push_back(each[r]);
        const SegmentNewest newest = segment.newest(level);
        out.emplace_back(level.len, level.begin, level.end, evidence.total[r], std::move(strongest),
                         std::move(votes), std::pair{newest.token, newest.age});
    }
    return out;
}

// Seconds of each draft of `depth` tokens after text[..start]: find, gather and newest, then the same for the
// context extended by the strongest follower of the longest level. Timed here since the overhead of Python
// per call would dominate.
std::vector<double> time_drafts(const Segment& segment, std::span<const Token> text,
                                std::span<const std::uint64_t> starts, std::size_t depth,
                                std::span<const int> orders) {
    std::vector<double> seconds;
    std::vector<Token> context;
    for (const std::uint64_t start : starts) {
        const std::size_t end = std::min<std::size_t>(start, text.size());
        const auto tail = text.first(end).last(std::min<std::size_t>(end, kSegmentContext));
        context.assign(tail.begin(), tail.end());
        context.reserve(context.size() + depth);
        const auto began = std::chrono::steady_clock::now();
        SegmentView view;
        for (std::size_t k = 0; k < depth; ++k) {
            SegmentEvidence evidence;
            segment.find(context, orders, view, k > 0 ? &view : nullptr);
            segment.gather(view, 3, evidence);
            if (view.size == 0 || evidence.strongest_size[0] == 0) break;
            (void)segment.newest(view.levels[0]);
            context.push_back(evidence.token[evidence.strongest[0][0]]);
        }
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    }
    return seconds;
}

}  // namespace

void raise_fault(const FileFault& fault) { throw Raised{fault}; }

void bind_segments(nb::module_& m) {
    static PyObject* fault_type =
        PyErr_NewException("suffixsvc.core._ext.FileFault", PyExc_Exception, nullptr);
    m.attr("FileFault") = nb::borrow(fault_type);
    nb::register_exception_translator(
        [](const std::exception_ptr& p, void*) {
            try {
                std::rethrow_exception(p);
            } catch (const Raised& e) {
                const nb::tuple values =
                    nb::make_tuple(kind_name(e.fault.kind), e.fault.message, e.fault.expected, e.fault.got);
                PyErr_SetObject(fault_type, values.ptr());
            }
        },
        nullptr);

    nb::class_<SegmentJob>(m, "SegmentJob")
        .def(nb::init<>())
        .def("cancel", [](SegmentJob& self) { self.cancelled.store(true, std::memory_order_relaxed); })
        .def_prop_ro("done",
                     [](const SegmentJob& self) { return self.done.load(std::memory_order_relaxed); });

    nb::class_<SegmentStats>(m, "SegmentStats")
        .def_ro("file_bytes", &SegmentStats::file_bytes)
        .def_ro("resident_bytes", &SegmentStats::resident_bytes)
        .def_ro("tokens", &SegmentStats::tokens)
        .def_ro("texts", &SegmentStats::texts)
        .def_ro("occurrences", &SegmentStats::occurrences)
        .def_ro("forgotten", &SegmentStats::forgotten)
        .def_ro("alphabet", &SegmentStats::alphabet)
        .def_ro("hubs", &SegmentStats::hubs)
        .def_ro("hub_min", &SegmentStats::hub_min)
        .def_ro("first_lsn", &SegmentStats::first_lsn)
        .def_ro("last_lsn", &SegmentStats::last_lsn)
        .def_ro("uncorrected", &SegmentStats::uncorrected);

    nb::class_<Segment>(m, "Segment")
        .def_static(
            "open",
            [](const std::string& path) {
                FileFault fault;
                std::shared_ptr<Segment> segment;
                {
                    nb::gil_scoped_release release;
                    segment = Segment::open(path, fault);
                }
                raise_if(fault);
                return segment;
            },
            "path"_a)
        .def(
            "query",
            [](const Segment& self, Array<Token> context, Array<std::int32_t> orders, std::size_t width,
               Array<Token> tokens) {
                nb::gil_scoped_release release;
                return query(self, span_of(context), span_of(orders), width, span_of(tokens));
            },
            "context"_a, "orders"_a, "width"_a, "tokens"_a)
        .def(
            "time_drafts",
            [](const Segment& self, Array<Token> text, Array<std::uint64_t> starts, std::size_t depth,
               Array<std::int32_t> orders) {
                nb::gil_scoped_release release;
                return time_drafts(self, span_of(text), span_of(starts), depth, span_of(orders));
            },
            "text"_a, "starts"_a, "depth"_a, "orders"_a)
        .def(
            "forget",
            [](Segment& self, Array<std::uint64_t> lsns) {
                nb::gil_scoped_release release;
                return self.forget(span_of(lsns));
            },
            "lsns"_a)
        .def("correct_hubs", &Segment::correct_hubs, "texts"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("outputs",
             [](const Segment& self) {
                 nb::gil_scoped_release release;
                 std::vector<std::uint64_t> lsns;
                 for (const SegmentOccurrence& o : self.occurrences())
                     if (lsns.empty() || lsns.back() != o.lsn) lsns.push_back(o.lsn);
                 return lsns;
             })
        .def("take_recently_used", &Segment::take_recently_used, nb::call_guard<nb::gil_scoped_release>())
        .def("check", &Segment::check, nb::call_guard<nb::gil_scoped_release>())
        .def("stats", &Segment::stats, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("corrupt", &Segment::corrupt)
        .def_prop_ro("path", &Segment::path);

    m.def(
        "build_segment",
        [](const std::string& path, Array<Token> tokens, Array<std::uint64_t> lengths,
           Array<std::uint32_t> contexts, Array<std::uint64_t> lsns, std::uint32_t hub_min, SegmentJob& job) {
            FileFault fault;
            {
                nb::gil_scoped_release release;
                fault =
                    build_segment(path, {span_of(tokens), span_of(lengths), span_of(contexts), span_of(lsns)},
                                  {hub_min}, job);
            }
            raise_if(fault);
        },
        "path"_a, "tokens"_a, "lengths"_a, "contexts"_a, "lsns"_a, "hub_min"_a, "job"_a);

    m.def(
        "merge_segments",
        [](const std::string& path, const std::vector<std::shared_ptr<Segment>>& sources,
           std::uint32_t hub_min, SegmentJob& job) {
            FileFault fault;
            {
                nb::gil_scoped_release release;
                std::vector<const Segment*> segments;
                for (const auto& s : sources) segments.push_back(s.get());
                fault = merge_segments(path, segments, {hub_min}, job);
            }
            raise_if(fault);
        },
        "path"_a, "sources"_a, "hub_min"_a, "job"_a);

    // For tests of the format, which repair the checksum of a modified file.
    m.def("crc32c", [](nb::bytes data) { return crc32c(data.data(), data.size()); }, "data"_a);
    m.def(
        "crc32c_portable", [](nb::bytes data) { return crc32c_portable(data.data(), data.size()); },
        "data"_a);
    m.attr("SEGMENT_TEMPORARY") = kSegmentTemporary;
}
