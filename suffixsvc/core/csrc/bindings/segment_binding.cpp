// Python binding of sealed segments: strict array types in, plain values out; the GIL is released around
// everything that does work. Faults become the project's errors.
#include <nanobind/stl/filesystem.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "base/files/crc32c.h"
#include "bindings/convert.h"
#include "segment/build/segment_builder.h"
#include "segment/query/segment.h"

using namespace suffixsvc;

namespace {

// The class of suffixsvc.errors that a fault becomes, and its remedy; by FileFault::Kind.
struct ErrorClass {
    const char* name;
    const char* remedy;
};
constexpr ErrorClass kErrors[] = {
    {"InvalidInputError", nullptr},
    {"SegmentCorruptError", "Delete the file; it is built again from the log."},
    {"StoreForeignError", "Use the version of suffixsvc that wrote the file, or delete it."},
    {"StoreCorruptError", "Delete the intermediate files and start the build again."},
    {"StoreFullError", "Free space on the disk; existing files are intact."},
    {"StoreError", "See the message of the system."},
    {"SegmentCancelledError", nullptr},
    {"InvalidConfigError", "Reduce --memory."},
};

void raise_fault(const std::exception_ptr& thrown, void*) try {
    std::rethrow_exception(thrown);
} catch (const FileFault& fault) {
    const auto or_none = [](const std::string& text) -> nb::object {
        return text.empty() ? nb::none() : nb::object(nb::cast(text));
    };
    const ErrorClass& its = kErrors[static_cast<std::size_t>(fault.kind)];
    const nb::object error = nb::module_::import_("suffixsvc.errors")
                                 .attr(its.name)(fault.message, "expected"_a = or_none(fault.expected),
                                                 "got"_a = or_none(fault.got), "remedy"_a = its.remedy);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

// A level as Python sees it: length, first entry, last entry + 1, all votes, (token, votes) of the strongest
// followers, votes of the requested tokens, (token, LSN) of the newest follower.
using LevelTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                              std::vector<std::pair<Token, std::uint32_t>>, std::vector<std::uint32_t>,
                              std::pair<Token, std::uint64_t>>;

std::vector<LevelTuple> query(const Segment& segment, std::span<const Token> context,
                              const std::vector<int>& orders, std::size_t width,
                              std::span<const Token> tokens) {
    const bool ascending = std::ranges::is_sorted(orders, std::less_equal());
    if (orders.size() >= kMaxLevels || !ascending ||
        (!orders.empty() && (orders.front() < 1 || orders.back() > static_cast<int>(kSegmentContext))))
        throw FileFault::invalid("orders must be at most 11 ascending lengths in 1 .. 64");
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
        out.emplace_back(level.len, level.begin, level.end, evidence.total[r], std::move(strongest),
                         std::move(votes),
                         std::pair{segment.token_at(evidence.newest[r]), segment.age_at(evidence.newest[r])});
    }
    return out;
}

// Seconds of each draft of `depth` tokens after text[..start]: find, gather and the newest follower, then the
// same for the context extended by the strongest follower of the longest level. Timed here since the overhead
// of Python per call would dominate.
std::vector<float> time_drafts(const Segment& segment, std::span<const Token> text,
                               const std::vector<std::size_t>& starts, std::size_t depth) {
    std::vector<float> seconds;
    std::vector<Token> context;
    for (const std::size_t start : starts) {
        const std::size_t end = std::min(start, text.size());
        const auto tail = text.first(end).last(std::min<std::size_t>(end, kSegmentContext));
        context.assign(tail.begin(), tail.end());
        context.reserve(context.size() + depth);
        const auto began = std::chrono::steady_clock::now();
        SegmentView view;
        for (std::size_t k = 0; k < depth; ++k) {
            SegmentEvidence evidence;
            segment.find(context, kOrders, view, k > 0 ? &view : nullptr);
            segment.gather(view, 3, evidence);
            if (view.size == 0 || evidence.strongest_size[0] == 0) break;
            (void)segment.token_at(evidence.newest[0]);
            context.push_back(evidence.token[evidence.strongest[0][0]]);
        }
        seconds.push_back(std::chrono::duration<float>(std::chrono::steady_clock::now() - began).count());
    }
    return seconds;
}

// An element of a list for an error message: at most 80 characters, or its type where it has no
// representation.
std::string shown(nb::handle value) {
    const nb::object text = nb::steal(PyObject_ASCII(value.ptr()));
    if (text.is_valid()) return std::string(PyUnicode_AsUTF8(text.ptr())).substr(0, 80);
    PyErr_Clear();
    return Py_TYPE(value.ptr())->tp_name;
}

}  // namespace

void suffixsvc::bind_segments(nb::module_& m) {
    nb::register_exception_translator(&raise_fault, nullptr);

    nb::class_<SegmentJob>(m, "SegmentJob")
        .def(nb::init<>())
        .def("cancel", [](SegmentJob& self) { self.cancelled = true; })
        .def_prop_ro("done", [](const SegmentJob& self) { return self.done.load(); });

    nb::class_<SegmentStats>(m, "SegmentStats")
        .def_ro("file_bytes", &SegmentStats::file_bytes)
        .def_ro("resident_bytes", &SegmentStats::resident_bytes)
        .def_ro("tokens", &SegmentStats::tokens)
        .def_ro("texts", &SegmentStats::texts)
        .def_ro("occurrences", &SegmentStats::occurrences)
        .def_ro("forgotten", &SegmentStats::forgotten)
        .def_ro("alphabet", &SegmentStats::alphabet)
        .def_ro("hub_min", &SegmentStats::hub_min)
        .def_ro("first_lsn", &SegmentStats::first_lsn)
        .def_ro("last_lsn", &SegmentStats::last_lsn)
        .def_ro("uncorrected", &SegmentStats::uncorrected);

    const auto forget = [](Segment& self, const nb::typed<nb::iterable, std::uint64_t>& outputs) {
        std::vector<std::uint64_t> lsns;
        for (const nb::handle output : outputs)
            if (!nb::try_cast(output, lsns.emplace_back()))
                throw FileFault::invalid("outputs must be unsigned ints", "", shown(output));
        return released([&] { return self.forget(lsns); });
    };
    nb::class_<Segment>(m, "Segment")
        .def(
            nb::new_([forget](const FilePath& path, const nb::typed<nb::iterable, std::uint64_t>& forgotten) {
                auto segment = released([&] { return Segment::open(path); });
                forget(*segment, forgotten);
                return segment;
            }),
            "path"_a, "forgotten"_a = nb::make_tuple())
        .def("query", &query, "context"_a, "orders"_a, "width"_a, "tokens"_a, Released())
        .def(
            "time_drafts",
            [](const Segment& self, std::span<const Token> text, const std::vector<std::size_t>& starts,
               std::size_t depth) {
                return to_numpy(released([&] { return time_drafts(self, text, starts, depth); }));
            },
            "text"_a, "starts"_a, "depth"_a = 16)
        .def("forget", forget, "outputs"_a)
        .def("correct_hubs", &Segment::correct_hubs, "texts"_a = std::size_t{1} << 62, Released())
        .def(
            "outputs",
            [](const Segment& self) {
                std::vector<std::uint64_t> lsns;
                for (const SegmentOccurrence& o : self.occurrences())
                    if (lsns.empty() || lsns.back() != o.lsn) lsns.push_back(o.lsn);
                return lsns;
            },
            Released())
        .def("take_recently_used", &Segment::take_recently_used, Released())
        .def("check", &Segment::require_sound, Released())
        .def("stats", &Segment::stats, Released())
        .def_prop_ro("corrupt", &Segment::corrupt)
        .def_prop_ro("path", [](const Segment& self) { return std::filesystem::path(self.path()); });

    const nb::object unobserved = nb::cast(new SegmentJob, nb::rv_policy::take_ownership);
    m.def(
        "build_segment",
        [](const FilePath& path, std::span<const Token> tokens, std::span<const std::uint64_t> lengths,
           std::span<const std::uint32_t> contexts, std::span<const std::uint64_t> lsns,
           std::uint32_t hub_min,
           SegmentJob& job) { build_segment(path, {tokens, lengths, contexts, lsns}, hub_min, job); },
        "path"_a, "tokens"_a, "lengths"_a, "contexts"_a, "lsns"_a, "hub_min"_a, "job"_a, Released());
    m.def(
        "merge_segments",
        [](const FilePath& path, const std::vector<std::shared_ptr<Segment>>& sources, std::uint32_t hub_min,
           SegmentJob& job) {
            std::vector<const Segment*> segments;
            for (const auto& s : sources) segments.push_back(s.get());
            merge_segments(path, segments, hub_min, job);
        },
        "path"_a, "sources"_a, nb::kw_only(), "hub_min"_a = 0, "job"_a = unobserved, Released());

    // For tests of the format, which repair the checksum of a modified file.
    m.def("crc32c", [](nb::bytes data) { return crc32c(data.data(), data.size()); }, "data"_a);
    m.def(
        "crc32c_portable", [](nb::bytes data) { return crc32c_portable(data.data(), data.size()); },
        "data"_a);
    m.attr("SEGMENT_TEMPORARY") = kSegmentTemporary;
    const SegmentHeader header;
    m.attr("SEGMENT_HEAD") = nb::bytes(&header, offsetof(SegmentHeader, version) + sizeof header.version);
}
