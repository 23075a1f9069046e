// Python binding of the driver's arithmetic. Contains no logic.
#include "bindings/convert.h"
#include "driver/acceptance_table.h"
#include "driver/kalman_filter.h"
#include "driver/step_costs.h"

using namespace suffixsvc;

namespace {

using Figures = std::tuple<std::size_t, std::size_t, double, double, double>;

Figures figures_of(const Prefix& prefix) {
    return {prefix.length, prefix.width, prefix.gain, prefix.tokens, prefix.cost};
}

}  // namespace

// Their calls take a microsecond: the GIL is kept.
void suffixsvc::bind_driver(nb::module_& m) {
    nb::class_<KalmanFilter>(m, "KalmanFilter")
        .def(nb::init<std::span<const double>, std::size_t, double, double>(), "prior"_a, "n"_a, "scale"_a,
             "common"_a)
        .def_prop_ro("size", &KalmanFilter::size)
        .def("value", &KalmanFilter::value, "i"_a)
        .def("variance", &KalmanFilter::variance, "i"_a)
        .def("difference_variance", &KalmanFilter::difference_variance, "i"_a, "j"_a)
        .def("observe", &KalmanFilter::observe, "i"_a, "measured"_a, "noise_variance"_a)
        .def("observe_robustly", &KalmanFilter::observe_robustly, "i"_a, "measured"_a, "scatter"_a)
        .def("forget", &KalmanFilter::forget, "share"_a)
        .def("reset", &KalmanFilter::reset, "common"_a)
        .def("values", [](const KalmanFilter& self) { return to_numpy(std::vector(self.values())); });

    using Doubles = std::vector<double>;
    using Depths = std::vector<std::size_t>;
    using Ids = std::vector<std::int64_t>;
    nb::class_<AcceptanceTable>(m, "AcceptanceTable")
        .def(nb::init<>())
        .def(
            "calibrate",
            [](const AcceptanceTable& self, const Doubles& raw, const Depths& depths) {
                return self.calibrate(raw, depths);
            },
            "raw"_a, "depths"_a)
        .def("learn", &AcceptanceTable::learn, "raw"_a, "depth"_a, "hit"_a)
        .def(
            "label",
            [](AcceptanceTable& self, const Ids& drafted, const Doubles& raw, const Ids& written,
               std::size_t first_depth) { self.label(drafted, raw, written, first_depth); },
            "drafted"_a, "raw"_a, "written"_a, "first_depth"_a)
        .def("acceptance", &AcceptanceTable::acceptance, "prior"_a);

    nb::class_<StepCosts>(m, "StepCosts")
        .def(nb::init<Doubles>(), "costs"_a)
        .def("__getstate__", &StepCosts::costs)
        .def("__setstate__", [](StepCosts* self, Doubles costs) { new (self) StepCosts(std::move(costs)); })
        .def(
            "evaluate",
            [](const StepCosts& self, const Doubles& paths, double rate, std::size_t limit, std::size_t room,
               std::size_t other_tokens, const Doubles& extra) {
                std::vector<Figures> found;
                for (const Prefix& each : self.evaluate(paths, {rate, limit, room, other_tokens}, extra))
                    found.push_back(figures_of(each));
                return found;
            },
            "paths"_a, "rate"_a, "limit"_a, "room"_a, "other_tokens"_a, "extra"_a)
        .def(
            "best",
            [](const StepCosts& self, const Doubles& paths, double rate, std::size_t limit, std::size_t room,
               std::size_t other_tokens, const Doubles& extra,
               std::size_t longer_than) -> std::optional<Figures> {
                const std::optional<Prefix> best =
                    self.best(paths, {rate, limit, room, other_tokens}, extra, longer_than);
                if (!best) return std::nullopt;
                return figures_of(*best);
            },
            "paths"_a, "rate"_a, "limit"_a, "room"_a, "other_tokens"_a, "extra"_a, "longer_than"_a);
}
