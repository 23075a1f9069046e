// Registers the segment half of the native module; see bindings/module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include "base/file_fault.h"

// Raises a fault as suffixsvc.core._ext.FileFault(kind, message, expected, got).
[[noreturn]] void raise_fault(const suffixsvc::FileFault& fault);

void bind_segments(nanobind::module_& m);
