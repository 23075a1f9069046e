// Python binding of the word memo: bytes and strict arrays in, arrays out; the GIL is released around
// everything that does work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "base/word_memo.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace suffixsvc;

void bind_words(nb::module_& m);

namespace {

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
nb::object as_numpy(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

WordCuts cuts_of(const nb::bytes& table) {
    WordCuts cuts{};
    if (table.size() != cuts.size()) throw nb::value_error("cuts must have 128 * 128 bytes");
    std::memcpy(cuts.data(), table.c_str(), cuts.size());
    return cuts;
}

// (tokens, skipped spans as [at, begin, end, ...], unknown words)
nb::tuple encode(const WordMemo& memo, const nb::bytes& text) {
    WordTokens found;
    {
        nb::gil_scoped_release release;
        found = memo.encode(view_of(text));
    }
    std::vector<std::int64_t> skipped;
    for (const SkippedSpan& span : found.skipped)
        skipped.insert(skipped.end(), {span.at, span.begin, span.end});
    nb::list unknown;
    for (const std::string_view word : found.unknown) unknown.append(nb::bytes(word.data(), word.size()));
    return nb::make_tuple(as_numpy(std::move(found.tokens)), skipped, unknown);
}

void learn(WordMemo& memo, const std::vector<nb::bytes>& words, Array<std::int32_t> tokens,
           Array<std::int64_t> ends) {
    std::int64_t last = 0;
    bool whole = ends.shape(0) == words.size();
    for (std::size_t i = 0; whole && i < words.size(); last = ends.data()[i++])
        whole = last <= ends.data()[i] && ends.data()[i] <= static_cast<std::int64_t>(tokens.shape(0));
    if (!whole || last != static_cast<std::int64_t>(tokens.shape(0)))
        throw nb::value_error("ends must divide tokens among words");
    std::vector<std::string_view> views;
    views.reserve(words.size());
    for (const nb::bytes& word : words) views.push_back(view_of(word));
    nb::gil_scoped_release release;
    memo.learn(views, {tokens.data(), tokens.shape(0)}, {ends.data(), ends.shape(0)});
}

}  // namespace

void bind_words(nb::module_& m) {
    nb::class_<WordMemo>(m, "WordMemo")
        .def(
            "__init__",
            [](WordMemo* self, const nb::bytes& cuts, std::size_t memory_bytes) {
                new (self) WordMemo(cuts_of(cuts), memory_bytes);
            },
            "cuts"_a, "memory_bytes"_a)
        .def("encode", &encode, "text"_a)
        .def("learn", &learn, "words"_a, "tokens"_a.noconvert(), "ends"_a.noconvert())
        .def_prop_ro("words", &WordMemo::words);
}
