// Conversions of the binding: arrays and paths in, arrays and bytes out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "base/files/file_fault.h"
#include "draft/session/session.h"

namespace suffixsvc {

// Tokens of a step: the caller's array, or a list's copy.
struct StepTokens {
    std::span<const Token> array;
    std::vector<Token> listed;

    std::span<const Token> view() const { return listed.empty() ? array : std::span<const Token>(listed); }
};

}  // namespace suffixsvc

namespace nanobind::detail {

// C-contiguous, of rank 1.
template <typename T>
struct type_caster<std::span<const T>> {
    using Array = make_caster<ndarray<const T, ndim<1>, c_contig, device::cpu>>;
    NB_TYPE_CASTER(std::span<const T>, Array::Name)

    bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
        if (!array.from_python(src, flags, cleanup)) return false;
        value = {array.value.data(), array.value.shape(0)};
        return true;
    }
    Array array;  // the owner of the memory
};

// A list, or a C-contiguous array of rank 1. An element of a list that is no int in 0 .. 2^31 - 1 becomes -1,
// which a step refuses: no code of the element's runs.
template <>
struct type_caster<suffixsvc::StepTokens> {
    using Array = make_caster<std::span<const suffixsvc::Token>>;
    NB_TYPE_CASTER(suffixsvc::StepTokens, const_name("list[int] | ") + Array::Name)

    bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
        if (!PyList_CheckExact(src.ptr())) {
            if (!array.from_python(src, flags, cleanup)) return false;
            value.array = array.value;
            return true;
        }
        const Py_ssize_t n = PyList_GET_SIZE(src.ptr());
        value.listed.reserve(static_cast<std::size_t>(n));
        for (Py_ssize_t i = 0; i < n; ++i) value.listed.push_back(token_of(PyList_GET_ITEM(src.ptr(), i)));
        return true;
    }

    static suffixsvc::Token token_of(PyObject* item) noexcept {
        int overflow = 0;
        const long long token = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
        const bool fits =
            overflow == 0 && token >= 0 && token <= std::numeric_limits<suffixsvc::Token>::max();
        return fits ? static_cast<suffixsvc::Token>(token) : -1;
    }
    Array array;  // the owner of the memory
};

template <>
struct type_caster<suffixsvc::FilePath> {
    NB_TYPE_CASTER(suffixsvc::FilePath, const_name("str | os.PathLike[str]"))

    type_caster() : value("") {}
    bool from_python(handle src, std::uint32_t, cleanup_list*) noexcept {
        const object path = steal(PyOS_FSPath(src.ptr()));
        Py_ssize_t size = 0;
        const char* text = path.is_valid() ? PyUnicode_AsUTF8AndSize(path.ptr(), &size) : nullptr;
        if (text != nullptr) {
            value = {std::string(text, static_cast<std::size_t>(size))};
            return true;
        }
        PyErr_Clear();
        if (!path.is_valid() || !PyUnicode_Check(path.ptr())) return false;
        const object shown = steal(PyUnicode_AsEncodedString(path.ptr(), "utf-8", "backslashreplace"));
        value = {shown.is_valid() ? PyBytes_AsString(shown.ptr()) : "", false};
        PyErr_Clear();
        return true;
    }
};

}  // namespace nanobind::detail

namespace suffixsvc {

namespace nb = nanobind;
using namespace nb::literals;

// Releases the GIL during a call that does work.
using Released = nb::call_guard<nb::gil_scoped_release>;

// Calls work() without the GIL.
template <typename Work>
auto released(Work&& work) {
    const nb::gil_scoped_release release;
    return work();
}

// A cost curve that Python holds: converted once, shared by many steps.
struct Curve {
    std::shared_ptr<const CostCurve> cost;  // immutable, at least one entry
};

inline std::string_view view(const nb::bytes& b) { return {b.c_str(), b.size()}; }
inline nb::bytes to_bytes(std::string_view data) { return nb::bytes(data.data(), data.size()); }

template <typename T>
using Numpy = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
Numpy<T> to_numpy(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Numpy<T>(kept->data(), {kept->size()}, owner);
}

// A draft as lists, which cost a tenth of as many small arrays: token_ids, parents, probs, sources,
// match_lens; none for an empty draft. `sources` maps the core's source numbers to others.
using Columns =
    std::optional<std::tuple<std::vector<std::int32_t>, std::vector<std::int32_t>, std::vector<float>,
                             std::vector<std::uint8_t>, std::vector<std::uint32_t>>>;
Columns columns(const std::vector<DraftToken>& draft, std::string_view sources);

void bind_driver(nb::module_& m);
void bind_ngrams(nb::module_& m);
void bind_publishing(nb::module_& m);
void bind_segments(nb::module_& m);
void bind_steps(nb::module_& m);

}  // namespace suffixsvc
