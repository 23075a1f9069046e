// Registers the counting of n-grams of the native module; glue, like binding.cpp.
#pragma once

#include <nanobind/nanobind.h>

void bind_ngrams(nanobind::module_& m);
