// Python binding of the n-gram counter and the word memo: strict array types in, plain values out; the GIL is
// released around everything that does work.
#include <cstring>
#include <limits>

#include "base/cache/word_memo.h"
#include "bindings/convert.h"
#include "ngram/ngram_counter.h"
#include "ngram/ngram_run.h"
#include "ngram/ngram_tally.h"

using namespace suffixsvc;

namespace {

constexpr std::int64_t kMaxToken = std::numeric_limits<Token>::max();
constexpr std::size_t kMergeBytes = 64 << 20;

// Start of each record of `head` words, a number of followers and pairs, and end of the last whole one; in
// words.
std::vector<std::int64_t> record_starts(std::span<const std::int32_t> words, std::size_t head) {
    std::vector<std::int64_t> starts{0};
    std::size_t at = 0;
    head = std::max<std::size_t>(head, 1);
    while (words.size() - at >= head) {
        const std::int64_t followers = words[at + head - 1];
        if (followers <= 0 || static_cast<std::uint64_t>(followers) > (words.size() - at - head) / 2) break;
        at += head + 2 * static_cast<std::size_t>(followers);
        starts.push_back(static_cast<std::int64_t>(at));
    }
    return starts;
}

// Tokens, skipped spans as (at, begin, end), unknown words.
auto encode_text(const WordMemo& memo, const nb::bytes& text) {
    WordTokens found = released([&] { return memo.encode(view(text)); });
    std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> skipped;
    for (const SkippedSpan& span : found.skipped) skipped.emplace_back(span.at, span.begin, span.end);
    std::vector<nb::bytes> unknown;
    for (const std::string_view word : found.unknown) unknown.push_back(to_bytes(word));
    return std::tuple(to_numpy(std::move(found.tokens)), skipped, unknown);
}

void learn_words(WordMemo& memo, const std::vector<nb::bytes>& words, std::span<const std::int32_t> tokens,
                 std::span<const std::int64_t> ends) {
    std::int64_t last = 0;
    bool whole = ends.size() == words.size();
    for (std::size_t i = 0; whole && i < words.size(); last = ends[i++]) whole = last <= ends[i];
    if (!whole || last != static_cast<std::int64_t>(tokens.size()))
        throw nb::value_error("ends must divide tokens among words");
    std::vector<std::string_view> views;
    for (const nb::bytes& word : words) views.push_back(view(word));
    released([&] { memo.learn(views, tokens, ends); });
}

}  // namespace

void suffixsvc::bind_ngrams(nb::module_& m) {
    nb::class_<NgramCounter>(m, "NgramCounter")
        .def(nb::new_(&NgramCounter::make), "lowest"_a, "highest"_a, nb::kw_only(),
             "largest_token"_a = kMaxToken, "memory_bytes"_a)
        // No conversion: it would change an id that does not fit.
        .def("add", &NgramCounter::add, "tokens"_a.noconvert(), "ends"_a.noconvert(),
             "contexts"_a.noconvert(), Released())
        .def("spill", &NgramCounter::spill, "path"_a, Released())
        .def_prop_ro("room", &NgramCounter::room)
        .def_prop_ro("tokens", &NgramCounter::tokens);

    nb::class_<TallyOutput>(m, "TallyOutput")
        .def(nb::init<FilePath, unsigned, unsigned, std::uint64_t, std::uint32_t, std::uint32_t,
                      std::uint32_t, std::uint32_t, bool, bool, bool>(),
             "path"_a, "order"_a, "slots"_a = 4, "min_count"_a = 1, "top"_a = 0, "max_count"_a = 0,
             "least"_a = 0, "percent"_a = 0, "firing"_a = false, "unique"_a = false, "totals"_a = false)
        .def_ro("order", &TallyOutput::order)
        .def_ro("records", &TallyOutput::records)
        .def_ro("pairs", &TallyOutput::pairs)
        .def_ro("bytes", &TallyOutput::bytes)
        .def_ro("count_sum", &TallyOutput::count_sum)
        .def_ro("occurrences", &TallyOutput::occurrences);

    const nb::object unobserved = nb::cast(new SegmentJob, nb::rv_policy::take_ownership);
    m.def("tally_runs", &tally_runs, "runs"_a, "outputs"_a, nb::kw_only(), "first_token"_a = 0,
          "end_token"_a = kMaxToken + 1, "memory_bytes"_a = kMergeBytes, "job"_a = unobserved, Released());
    m.def("combine_runs", &combine_runs, "runs"_a, "path"_a, nb::kw_only(), "memory_bytes"_a = kMergeBytes,
          "job"_a = unobserved, Released());
    m.def("split_runs", &split_runs, "runs"_a, "parts"_a, Released());
    m.def("check_run", &check_run, "path"_a, Released());
    m.def(
        "run_tokens", [](const FilePath& path) { return read_run_header(path).tokens; }, "path"_a,
        Released());
    m.def(
        "record_starts",
        [](std::span<const std::int32_t> words, std::size_t head) {
            return to_numpy(released([&] { return record_starts(words, head); }));
        },
        "words"_a, "head"_a);

    nb::class_<WordMemo>(m, "WordMemo")
        .def(
            "__init__",
            [](WordMemo* self, const nb::bytes& table, std::size_t memory_bytes) {
                WordCuts cuts{};
                if (table.size() != cuts.size()) throw nb::value_error("cuts must have 128 * 128 bytes");
                std::memcpy(cuts.data(), table.c_str(), cuts.size());
                new (self) WordMemo(cuts, memory_bytes);
            },
            "cuts"_a, "memory_bytes"_a)
        .def("encode", &encode_text, "text"_a)
        .def("learn", &learn_words, "words"_a, "tokens"_a.noconvert(), "ends"_a.noconvert())
        .def_prop_ro("words", &WordMemo::words);
}
