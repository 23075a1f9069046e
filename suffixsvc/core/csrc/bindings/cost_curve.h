// A cost curve that Python holds: converted once, shared by many steps.
#pragma once

#include <memory>

#include "draft/session.h"

namespace suffixsvc {

struct Curve {
    std::shared_ptr<const CostCurve> cost;  // immutable, at least one entry
};

}  // namespace suffixsvc
