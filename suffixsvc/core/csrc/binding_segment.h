// Registers the segment half of the native module; glue, like binding.cpp.
#pragma once

#include <nanobind/nanobind.h>

void bind_segments(nanobind::module_& m);
