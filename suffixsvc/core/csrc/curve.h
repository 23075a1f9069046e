// A cost curve as Python holds it: made once, handed to many steps.
#pragma once

#include <memory>

#include "session.h"

namespace suffixsvc {

struct Curve {
    std::shared_ptr<const CostCurve> cost;  // immutable, at least one entry
};

}  // namespace suffixsvc
