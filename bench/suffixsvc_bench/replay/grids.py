"""Tables of a comparison, for the terminal, the report and docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from suffixsvc_bench.methods import MethodSpec
from suffixsvc_bench.replay.compare import Plan, Run, TraceResult
from suffixsvc_bench.report.statistics import geometric_mean
from suffixsvc_bench.report.tables import Grid

Column = Callable[[TraceResult], float | None]
#: figures of a trace, each with its heading
Columns = list[tuple[str, Column]]

#: our mode for each cost: trees where drafted tokens are cheap, chains where they are expensive
MODES: Final = {"0.01": "ours-tree", "0.05": "ours-auto", "0.2": "ours-linear"}
_CURVE_MODE: Final = "ours-linear"
#: size of a family up to which every member has a row
_FEW: Final = 3


def families(methods: Sequence[MethodSpec]) -> dict[str, list[MethodSpec]]:
    """Configurations by family; families with one member are omitted."""
    found: dict[str, list[MethodSpec]] = {}
    for spec in methods:
        for name in spec.families:
            found.setdefault(name, []).append(spec)
    return {name: specs for name, specs in found.items() if len(specs) > 1}


def listed(methods: Sequence[MethodSpec]) -> list[MethodSpec]:
    """Methods with a row: of a large family, only the first member."""
    firsts = {name: specs[0].key for name, specs in families(methods).items() if len(specs) > _FEW}
    return [s for s in methods if all(firsts.get(name, s.key) == s.key for name in s.families)]


def describe(result: TraceResult) -> str:
    """A trace in one line."""
    of = f", {', '.join(result.agents)}" if result.agents else ""
    warm = f", after {result.warming_calls} warm-up calls" if result.warming_calls else ""
    return f"{result.name} ({result.kind}{of}): {result.calls} calls, {result.tokens} tokens{warm}"


def _best_of(family: str, specs: Sequence[MethodSpec]) -> str:
    return f"{family.partition('-')[0].capitalize()}, best of {len(specs)}"


def hindsight(family: str, specs: Sequence[MethodSpec]) -> str:
    """Name of the best of a family's configurations."""
    return f"{_best_of(family, specs)} in hindsight"


def trace_grids(result: TraceResult, plan: Plan) -> tuple[Grid, Grid]:
    """Two tables of a trace: speed, and its components."""
    costs = [cost.name for cost in plan.costs]
    first = ["method", "drafts for"]
    speedups = [f"speedup at {cost}" for cost in costs]
    speed = Grid([*first, "K", "MAT", "drafted/step", "acceptance", *speedups])
    layers = ["draft", "hit", "accepted", "prompt", "suffix"]
    detail = Grid([*first, *layers, "ECE", "gap", "µs p50", "p90", "p99", "MB"])
    for spec in listed(plan.methods):
        for run in (run for run in result.runs if run.method == spec.key and not run.sweep):
            rates, first = run.rates, [spec.title, run.cost or "any"]
            figures = [
                str(run.k),
                f"{rates['mean_accepted_tokens']:.2f}",
                f"{rates['drafted_per_step']:.2f}",
                f"{rates['acceptance_rate']:.1%}",
            ]
            speed.rows.append([*first, *figures, *(_ratio(run.speedups.get(cost)) for cost in costs)])
            detail.rows.append([*first, *_detail(run)])
    for family, specs in families(plan.methods).items():
        best = [_ratio(result.speedup(specs, cost)) for cost in costs]
        speed.summaries.append([hindsight(family, specs), *[""] * 5, *best])
    return speed, detail


def _detail(run: Run) -> list[str]:
    rates, us = run.rates, run.rates["microseconds"]
    layers = [rates["layers"][name]["tokens_accepted"] for name in ("prompt", "suffix")]
    return [
        *(f"{rates[name]:.1%}" for name in ("steps_with_draft", "steps_with_hit", "tokens_accepted")),
        *(f"{layer:.1%}" if sum(layers) else "" for layer in layers),
        *_calibration(run),
        *(f"{us[p]:.0f}" for p in ("p50", "p90", "p99")),
        f"{rates['memory_bytes'] / 1e6:.1f}",
    ]


def summary_grids(results: Sequence[TraceResult], plan: Plan) -> list[Grid]:
    """Tables of all traces with geometric means, in all and by kind of text.

    For each cost: the priced speedups, and ratios of ours to the best of a family in hindsight and of our
    drop-in class to the original.
    """
    grids = []
    known = families(plan.methods).items()
    for cost in (cost.name for cost in plan.costs):
        speedups: Columns = [
            *((spec.title, _speedup([spec], cost)) for spec in listed(plan.methods)),
            *((hindsight(name, specs), _speedup(specs, cost)) for name, specs in known),
        ]
        ratios: Columns = [
            (f"{spec.title} / {_best_of(name, specs)}", _divided(spec, specs, cost))
            for name, specs in known
            for spec in plan.methods
            if spec.cost_aware
        ]
        ratios += [
            (f"{own.title} / {other.title}", _divided(own, [other], cost))
            for own, other in _replacements(plan)
        ]
        grids.append(_summary(f"priced speedup at cost {cost}", speedups, results))
        if ratios:
            grids.append(_summary(f"speedup ratios at cost {cost}", ratios, results))
    return grids


def headline_grids(results: Sequence[TraceResult], plan: Plan) -> list[Grid]:
    """Tables for docs/performance.md: ours at each cost beside the best in hindsight, calibration, the
    drop-in class.
    """
    names = [cost.name for cost in plan.costs]
    specs = {spec.key: spec for spec in plan.methods}
    speed: Columns = []
    few = min(families(plan.methods).items(), key=lambda item: len(item[1]), default=None)
    for cost, ours in ((cost, specs.get(key)) for cost, key in MODES.items() if cost in names):
        if ours is None:
            continue
        speed.append((f"{ours.title}, at {cost}", _speedup([ours], cost)))
        if few is not None:
            speed.append((f"/ {hindsight(*few)}", _divided(ours, few[1], cost)))
    if "curve" in names and (ours := specs.get(_CURVE_MODE)):
        speed.append((f"{ours.title}, by the curve", _speedup([ours], "curve")))
    grids = [_summary("priced speedup", speed, results)] if speed else []
    calibrated = [spec for spec in plan.methods if spec.cost_aware and "0.05" in names]
    if calibrated:
        heads = [f"{figure}, {spec.title}" for spec in calibrated for figure in ("ECE", "gap")]
        grid = Grid(["calibration at cost 0.05", *heads])
        for result in results:
            runs = [result.run(spec.key, "0.05") for spec in calibrated]
            grid.rows.append([result.name, *(cell for run in runs for cell in _calibration(run))])
        grids.append(grid)
    for own, other in _replacements(plan):
        ratios: Columns = [(f"at {cost}", _divided(own, [other], cost)) for cost in names]
        grids.append(_summary(f"{own.title} / {other.title}", ratios, results))
    return grids


def _summary(title: str, columns: Columns, results: Sequence[TraceResult]) -> Grid:
    grid = Grid([title, *(heading for heading, _ in columns)])
    for result in results:
        grid.rows.append([result.name, *(_ratio(value(result)) for _, value in columns)])

    def summarise(name: str, some: Sequence[TraceResult], by: Callable[[list[float]], float]) -> None:
        values = ([v for r in some if (v := value(r)) is not None] for _, value in columns)
        grid.summaries.append([name, *(_ratio((by(found) or None) if found else None) for found in values)])

    kinds: dict[str, list[TraceResult]] = {}
    for result in results:
        kinds.setdefault(result.kind, []).append(result)
    for kind, of_kind in kinds.items():
        if 1 < len(of_kind) < len(results):
            summarise(f"geometric mean, {kind} ({len(of_kind)})", of_kind, geometric_mean)
    summarise(f"geometric mean ({len(results)})", results, geometric_mean)
    summarise("lowest", results, min)
    return grid


def _speedup(specs: Sequence[MethodSpec], cost: str) -> Column:
    return lambda result: result.speedup(specs, cost)


def _divided(own: MethodSpec, others: Sequence[MethodSpec], cost: str) -> Column:
    def value(result: TraceResult) -> float | None:
        a, b = result.speedup([own], cost), result.speedup(others, cost)
        return a / b if a and b else None

    return value


def _replacements(plan: Plan) -> list[tuple[MethodSpec, MethodSpec]]:
    """Drop-in replacements, each with the method that it replaces."""
    specs = {spec.key: spec for spec in plan.methods}
    return [(spec, specs[spec.instead_of]) for spec in plan.methods if spec.instead_of in specs]


def _calibration(run: Run | None) -> tuple[str, str]:
    """ECE and largest gap."""
    found = None if run is None else run.reliability
    return ("", "") if found is None else (_ratio(found.ece), _ratio(found.largest_bin_gap))


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
