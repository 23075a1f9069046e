// Python binding of the filter that corrects cost curves. Contains no logic.
#include "bindings/convert.h"
#include "cost/kalman_filter.h"

using namespace suffixsvc;

// Its calls take a microsecond: the GIL is kept.
void suffixsvc::bind_cost(nb::module_& m) {
    nb::class_<KalmanFilter>(m, "KalmanFilter")
        .def(nb::init<std::span<const double>, std::size_t, double, double>(), "prior"_a, "n"_a, "scale"_a,
             "common"_a)
        .def_prop_ro("size", &KalmanFilter::size)
        .def("value", &KalmanFilter::value, "i"_a)
        .def("variance", &KalmanFilter::variance, "i"_a)
        .def("difference_variance", &KalmanFilter::difference_variance, "i"_a, "j"_a)
        .def("observe", &KalmanFilter::observe, "i"_a, "measured"_a, "noise_variance"_a)
        .def("forget", &KalmanFilter::forget, "share"_a)
        .def("reset", &KalmanFilter::reset, "common"_a)
        .def("values", [](const KalmanFilter& self) { return to_numpy(std::vector(self.values())); });
}
