// Python binding of the n-gram counter: strict array types in, plain values out; the GIL is released around
// everything that does work. Faults are raised as in bindings/segment_binding.cpp.
#include "bindings/ngram_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/segment_binding.h"
#include "ngram/ngram_counter.h"
#include "ngram/ngram_run.h"
#include "ngram/ngram_tally.h"
#include "ngram/ngram_words.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

FileFault invalid(const char* message, std::string expected, std::string got) {
    return {FileFault::Kind::invalid, message, std::move(expected), std::move(got)};
}

// A counter that validates its input against its shape.
class CheckedCounter {
  public:
    CheckedCounter(unsigned lowest, unsigned highest, std::int64_t largest_token, std::size_t memory_bytes) {
        if (lowest < 1 || lowest > highest || highest > kMaxOrder)
            raise_fault(invalid("orders must satisfy 1 <= lowest <= highest <= 16", "",
                                std::to_string(lowest) + " .. " + std::to_string(highest)));
        if (largest_token < 0 || largest_token > std::numeric_limits<Token>::max())
            raise_fault(
                invalid("largest_token must be in 0 .. 2147483647", "", std::to_string(largest_token)));
        largest_ = largest_token;
        const auto bits = std::bit_width(static_cast<std::uint64_t>(largest_token) + 1);
        counter_ = make_ngram_counter({lowest, highest, static_cast<unsigned>(bits)}, memory_bytes);
        if (!counter_)
            raise_fault(invalid("memory_bytes must be some megabytes at least", "",
                                std::to_string(memory_bytes) + " bytes"));
    }

    // Counts concatenated texts: `ends` ascend to the number of tokens, `firsts` are the numbers of leading
    // context tokens. All texts or none.
    void add(Array<Token> tokens, Array<std::int64_t> ends, Array<std::int64_t> firsts) {
        FileFault fault;
        {
            nb::gil_scoped_release release;
            fault = check(tokens, ends, firsts);
            if (!fault) {
                std::size_t begin = 0;
                for (std::size_t i = 0; i < ends.shape(0); ++i) {
                    const auto end = static_cast<std::size_t>(ends.data()[i]);
                    counter_->add({tokens.data() + begin, end - begin},
                                  static_cast<std::size_t>(firsts.data()[i]));
                    begin = end;
                }
            }
        }
        if (fault) raise_fault(fault);
    }

    void spill(const std::string& path) {
        FileFault fault;
        {
            nb::gil_scoped_release release;
            fault = counter_->spill(path);
        }
        if (fault) raise_fault(fault);
    }

    std::size_t room() const { return counter_->room(); }
    std::uint64_t tokens() const { return counter_->tokens(); }

  private:
    FileFault check(const Array<Token>& tokens, const Array<std::int64_t>& ends,
                    const Array<std::int64_t>& firsts) const {
        const auto size = static_cast<std::int64_t>(tokens.shape(0));
        for (std::int64_t i = 0; i < size; ++i)
            if (tokens.data()[i] < 0 || tokens.data()[i] > largest_)
                return invalid("token ids must be in range", "0 .. " + std::to_string(largest_),
                               std::to_string(tokens.data()[i]) + " at position " + std::to_string(i));
        if (tokens.shape(0) > counter_->room())
            return invalid("tokens must fit the room of the counter", std::to_string(counter_->room()),
                           std::to_string(size));
        std::int64_t begin = 0;
        bool whole = ends.shape(0) == firsts.shape(0);
        for (std::size_t i = 0; whole && i < ends.shape(0); ++i) {
            whole = begin <= ends.data()[i] && ends.data()[i] <= size && firsts.data()[i] >= 0 &&
                    firsts.data()[i] <= ends.data()[i] - begin;
            begin = ends.data()[i];
        }
        if (!whole || begin != size)
            return invalid("ends and contexts must divide the tokens into texts", "", "");
        return {};
    }

    std::int64_t largest_ = 0;
    std::unique_ptr<NgramCounter> counter_;
};

template <typename Work>
void run_released(Work&& work) {
    FileFault fault;
    {
        nb::gil_scoped_release release;
        fault = work();
    }
    if (fault) raise_fault(fault);
}

// Start of each record, and end of the last whole one; in words.
std::vector<std::int64_t> record_starts(std::span<const std::int32_t> words, std::size_t head) {
    std::vector<std::int64_t> starts{0};
    std::size_t at = 0;
    while (words.size() - at >= head) {
        const std::int64_t followers = words[at + head - 1];
        if (followers <= 0 || static_cast<std::uint64_t>(followers) > (words.size() - at - head) / 2) break;
        at += head + 2 * static_cast<std::size_t>(followers);
        starts.push_back(static_cast<std::int64_t>(at));
    }
    return starts;
}

}  // namespace

void bind_ngrams(nb::module_& m) {
    nb::class_<CheckedCounter>(m, "NgramCounter")
        .def(nb::init<unsigned, unsigned, std::int64_t, std::size_t>(), "lowest"_a, "highest"_a,
             "largest_token"_a, "memory_bytes"_a)
        // No conversion: it would change an id that does not fit.
        .def("add", &CheckedCounter::add, "tokens"_a.noconvert(), "ends"_a.noconvert(),
             "firsts"_a.noconvert())
        .def("spill", &CheckedCounter::spill, "path"_a)
        .def_prop_ro("room", &CheckedCounter::room)
        .def_prop_ro("tokens", &CheckedCounter::tokens);

    nb::class_<TallyOutput>(m, "TallyOutput")
        .def(
            "__init__",
            [](TallyOutput* self, const std::string& path, unsigned order, unsigned slots,
               std::uint64_t min_count, std::uint32_t top, std::uint32_t max_count, std::uint32_t least,
               std::uint32_t percent, bool firing, bool unique, bool totals) {
                new (self) TallyOutput{path,  order,   slots,  min_count, top,   max_count,
                                       least, percent, firing, unique,    totals};
            },
            "path"_a, "order"_a, "slots"_a = 4, "min_count"_a = 1, "top"_a = 0, "max_count"_a = 0,
            "least"_a = 0, "percent"_a = 0, "firing"_a = false, "unique"_a = false, "totals"_a = false)
        .def_ro("path", &TallyOutput::path)
        .def_ro("order", &TallyOutput::order)
        .def_ro("records", &TallyOutput::records)
        .def_ro("pairs", &TallyOutput::pairs)
        .def_ro("bytes", &TallyOutput::bytes)
        .def_ro("count_sum", &TallyOutput::count_sum)
        .def_ro("occurrences", &TallyOutput::occurrences);

    m.def(
        "tally_runs",
        [](const std::vector<std::string>& runs, std::int64_t low, std::int64_t high,
           std::size_t memory_bytes, std::vector<TallyOutput> outputs, SegmentJob& job) {
            run_released([&] { return tally_runs(runs, low, high, memory_bytes, outputs, job); });
            return outputs;
        },
        "runs"_a, "low"_a, "high"_a, "memory_bytes"_a, "outputs"_a, "job"_a);
    m.def(
        "combine_runs",
        [](const std::vector<std::string>& runs, const std::string& path, std::size_t memory_bytes,
           SegmentJob& job) { run_released([&] { return combine_runs(runs, path, memory_bytes, job); }); },
        "runs"_a, "path"_a, "memory_bytes"_a, "job"_a);
    m.def(
        "split_runs",
        [](const std::vector<std::string>& runs, unsigned parts) {
            std::vector<std::int64_t> tokens;
            run_released([&] { return split_runs(runs, parts, tokens); });
            return tokens;
        },
        "runs"_a, "parts"_a);
    m.def(
        "check_run", [](const std::string& path) { run_released([&] { return check_run(path); }); },
        "path"_a);
    m.def(
        "run_tokens",
        [](const std::string& path) {
            FileFault fault;
            const RunHeader header = read_run_header(path, fault);
            if (fault) raise_fault(fault);
            return header.tokens;
        },
        "path"_a);
    m.def(
        "record_starts",
        [](Array<std::int32_t> words, std::size_t head) {
            std::vector<std::int64_t>* starts;
            {
                nb::gil_scoped_release release;
                starts = new std::vector<std::int64_t>(
                    record_starts({words.data(), words.shape(0)}, std::max<std::size_t>(head, 1)));
            }
            nb::capsule owner(starts,
                              [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
            return nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(starts->data(), {starts->size()}, owner);
        },
        "words"_a, "head"_a);
}
