// Registers the n-gram half of the native module; see bindings/module.cpp.
#pragma once

#include <nanobind/nanobind.h>

void bind_ngrams(nanobind::module_& m);
