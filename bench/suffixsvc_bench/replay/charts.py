"""Plots of the replay report, with their captions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from suffixsvc.plots import COLOURS, Chart, Series
from suffixsvc_bench.methods import MethodSpec
from suffixsvc_bench.replay.calibration import ReliabilityBin, pooled
from suffixsvc_bench.replay.compare import Plan, Run, TraceResult
from suffixsvc_bench.replay.grids import families, hindsight, listed
from suffixsvc_bench.replay.stats import total_cost
from suffixsvc_bench.report.statistics import geometric_mean

__all__ = ["charts"]

#: points of a time line
_WINDOWS: Final = 20
#: points of a curve over costs
_COSTS: Final = 25

#: aggregates the values of several traces
Mean = Callable[[Sequence[float]], float]

_SPEEDUP: Final = """Speedup over plain decoding, by the cost of a drafted token (assumed: 0.01 for a
large model on a GPU, 0.2 for a small one on a CPU). Below 1 drafting is slower than plain decoding. Dots:
methods that draft for the cost at which they are scored; dashed: fixed configurations, scored afterwards."""

_ACCEPTANCE: Final = """Share of the drafted tokens that were accepted, by the widest draft allowed,
drafting for cost {cost}. Lines fall because later tokens of a draft are less likely; the next plot shows
whether they pay nevertheless."""

_WIDTH: Final = """Speedup of the same replays at cost {cost}."""

_HITS: Final = """Share of the model's steps with at least one accepted drafted token, by the number of
tokens written before (the history doubles from dot to dot). Lines of methods that remember earlier calls
rise. Drafting for cost {cost}."""

_RELIABILITY: Final = """Every drafted token, in 20 bins of equal size by its predicted probability of
being accepted with all tokens before it; x: the bin's mean prediction, y: the accepted share. On the
diagonal predictions are calibrated; below it they are too high. ECE is the mean distance from the
diagonal, the gap the largest distance. Drafting for cost {cost}; methods without probabilities are
missing."""

_TIME_LINE: Final = """Tokens per step of the model (MAT), in the order of writing: from the first
answer, with an empty cache, to the last. 1 is plain decoding. Drafting for cost {cost}."""


def charts(results: Sequence[TraceResult], plan: Plan) -> list[Chart]:
    """Plots of some traces together; plots without points are omitted."""
    drawn = [
        _speedup_by_cost(results, plan),
        *_by_width(results, plan),
        _hits_by_history(results, plan),
        _reliability(results, plan),
        _time_line(results, plan),
    ]
    return [chart for chart in drawn if any(series.points for series in chart.series)]


def _caption(text: str, results: Sequence[TraceResult], how: str, cost: str = "") -> str:
    averaged = f" {how}, {len(results)} traces." if len(results) > 1 else ""
    return " ".join(text.format(cost=cost).split()) + averaged


def _main_cost(plan: Plan) -> str:
    """Cost of the plots without a cost axis: 0.05 if it was requested, else the first."""
    names = [cost.name for cost in plan.costs]
    return "0.05" if "0.05" in names else names[0]


def _speedup_by_cost(results: Sequence[TraceResult], plan: Plan) -> Chart:
    floats = {cost.name: cost.cost for cost in plan.costs if isinstance(cost.cost, float) and cost.cost > 0}
    low, high = min([0.01, *floats.values()]), max([0.2, *floats.values()])
    grid = [low * (high / low) ** (i / (_COSTS - 1)) for i in range(_COSTS)]
    series = []
    for colour, spec in enumerate(listed(plan.methods)):
        if spec.cost_aware:
            points = [(c, _mean_speedup([r.run(spec.key, n) for r in results], n)) for n, c in floats.items()]
            series.append(Series(spec.title, sorted(p for p in points if p[1]), colour))
            continue
        runs = [_widest(r, spec) for r in results]
        points = [(c, geometric_mean([_priced(run, c) for run in runs if run])) for c in grid]
        series.append(Series(spec.title, points, colour, dashed=True))
    for number, (family, specs) in enumerate(families(plan.methods).items()):
        grids = [
            (c, geometric_mean([max(_priced(_widest(r, spec), c) for spec in specs) for r in results]))
            for c in grid
        ]
        series.append(Series(hindsight(family, specs), grids, COLOURS - 1 - number, dashed=True))
    return Chart(
        "Speedup against the cost of a drafted token",
        _caption(_SPEEDUP, results, "Geometric mean"),
        "cost of a drafted token, in plain steps",
        "speedup",
        series,
        log_x=True,
        level=1.0,
    )


def _by_width(results: Sequence[TraceResult], plan: Plan) -> list[Chart]:
    def chart(
        title: str, caption: str, y: str, value: Callable[[Run], float], mean: Mean, share: bool
    ) -> Chart:
        series = []
        for colour, spec in enumerate(listed(plan.methods)):
            points = []
            for k in plan.sweep:
                runs = [
                    run
                    for r in results
                    for run in r.runs
                    if run.sweep and (run.method, run.k) == (spec.key, k)
                ]
                if runs:
                    points.append((float(k), mean([value(run) for run in runs])))
            series.append(Series(spec.title, points, colour))
        label = "K, most tokens drafted in a step"
        level = None if share else 1.0
        ticks = [float(k) for k in plan.sweep]
        return Chart(title, caption, label, y, series, percent_y=share, level=level, x_ticks=ticks)

    cost = plan.sweep_cost.name
    return [
        chart(
            "Acceptance against K",
            _caption(_ACCEPTANCE, results, "Mean", cost),
            "drafted tokens accepted",
            lambda run: float(run.rates["acceptance_rate"]),
            lambda values: sum(values) / len(values),
            True,
        ),
        chart(
            f"Speedup at cost {cost} against K",
            _caption(_WIDTH, results, "Geometric mean", cost),
            "speedup",
            lambda run: run.speedups[cost],
            geometric_mean,
            False,
        ),
    ]


def _hits_by_history(results: Sequence[TraceResult], plan: Plan) -> Chart:
    series = []
    for colour, spec in enumerate(listed(plan.methods)):
        sums: dict[int, list[int]] = {}
        for run in _main_runs(results, spec, plan):
            for before, tokens, steps, hits, _ in run.timeline:
                size = int(math.log2(max(before + tokens / 2, 1)))
                total = sums.setdefault(size, [0, 0])
                total[0] += steps
                total[1] += hits
        points = [
            (2.0 ** (size + 0.5), hits / steps) for size, (steps, hits) in sorted(sums.items()) if steps
        ]
        series.append(Series(spec.title, points, colour))
    return Chart(
        "Hit rate against the size of the history",
        _caption(_HITS, results, "All steps pooled", _main_cost(plan)),
        "tokens written before",
        "steps with a hit",
        series,
        log_x=True,
        percent_y=True,
    )


def _reliability(results: Sequence[TraceResult], plan: Plan) -> Chart:
    series = []
    cost = _main_cost(plan)
    for colour, spec in enumerate(listed(plan.methods)):
        runs = [run for run in _main_runs(results, spec, plan) if run.reliability is not None]
        found = [run.reliability for run in runs if run.reliability is not None]
        if not found:
            continue
        eces, gaps = [f["ece"] for f in found], [f["largest_bin_gap"] for f in found]
        points = pooled([ReliabilityBin(*b) for f in found for b in f["bins"]])
        name = f"{spec.title}: ECE {sum(eces) / len(eces):.3f}, largest gap {max(gaps):.3f}"
        series.append(Series(name, points, colour))
    return Chart(
        "Reliability of the draft probabilities",
        _caption(_RELIABILITY, results, "Bins pooled by prediction, ECE: mean", cost),
        "predicted",
        "accepted",
        series,
        percent_y=True,
        unit_square=True,
    )


def _time_line(results: Sequence[TraceResult], plan: Plan) -> Chart:
    series = []
    for colour, spec in enumerate(listed(plan.methods)):
        sums: dict[int, list[float]] = {}
        for run in _main_runs(results, spec, plan):
            whole = sum(piece[1] for piece in run.timeline)
            done = 0
            for _, tokens, steps, _, _ in run.timeline:
                window = min(int((done + tokens / 2) / whole * _WINDOWS), _WINDOWS - 1)
                total = sums.setdefault(window, [0.0, 0.0])
                total[0] += tokens
                total[1] += steps
                done += tokens
        tokens_a_trace = sum(result.tokens for result in results) / len(results)
        points = [((w + 0.5) / _WINDOWS * tokens_a_trace, a / b) for w, (a, b) in sorted(sums.items())]
        series.append(Series(spec.title, points, colour))
    return Chart(
        "MAT while the cache warms",
        _caption(_TIME_LINE, results, "Windows of the same share of each trace pooled", _main_cost(plan)),
        "tokens written",
        "MAT",
        series,
        level=1.0,
    )


def _main_runs(results: Iterable[TraceResult], spec: MethodSpec, plan: Plan) -> list[Run]:
    return [run for result in results if (run := result.run(spec.key, _main_cost(plan))) is not None]


def _widest(result: TraceResult, spec: MethodSpec) -> Run | None:
    """The run of a method that ignores costs, with its default K."""
    runs = [run for run in result.runs if run.method == spec.key and not run.sweep]
    return max(runs, key=lambda run: run.k, default=None)


def _priced(run: Run | None, cost: float) -> float:
    return 0.0 if run is None else run.rates["tokens"] / total_cost(run.widths, cost)


def _mean_speedup(runs: Iterable[Run | None], cost: str) -> float:
    return geometric_mean([run.speedups[cost] for run in runs if run is not None])
