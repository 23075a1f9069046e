"""Tables of a comparison, for the terminal, the report and docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from suffixsvc_bench.methods import MethodSpec
from suffixsvc_bench.replay.compare import Plan, Run, TraceResult
from suffixsvc_bench.report.statistics import geometric_mean
from suffixsvc_bench.report.tables import Grid

__all__ = ["describe", "families", "headline_grids", "hindsight", "listed", "summary_grids", "trace_grids"]


Column = Callable[[TraceResult], float | None]

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


def trace_grids(result: TraceResult, plan: Plan) -> tuple[Grid, Grid]:
    """Two tables of a trace: speed, and its components."""
    costs = [cost.name for cost in plan.costs]
    speed = Grid(
        [
            "method",
            "drafts for",
            "K",
            "MAT",
            "drafted/step",
            "acceptance",
            *(f"speedup at {c}" for c in costs),
        ]
    )
    layers = ["draft", "hit", "accepted", "prompt", "suffix"]
    detail = Grid(["method", "drafts for", *layers, "ECE", "gap", "µs p50", "p90", "p99", "MB"])
    for spec in listed(plan.methods):
        for run in (run for run in result.runs if run.method == spec.key and not run.sweep):
            rates = run.rates
            figures = [
                spec.title,
                run.cost or "any",
                str(run.k),
                f"{rates['mean_accepted_tokens']:.2f}",
                f"{rates['drafted_per_step']:.2f}",
                f"{rates['acceptance_rate']:.1%}",
            ]
            speed.rows.append([*figures, *(_ratio(run.speedups.get(name)) for name in costs)])
            detail.rows.append([spec.title, run.cost or "any", *_detail(run)])
    for family, specs in families(plan.methods).items():
        best = [result.best([spec.key for spec in specs], name) for name in costs]
        cells = [_ratio(None if r is None else r.speedups[c]) for c, r in zip(costs, best, strict=True)]
        speed.summaries.append([hindsight(family, specs), *[""] * 5, *cells])
    return speed, detail


def summary_grids(results: Sequence[TraceResult], plan: Plan) -> list[Grid]:
    """Tables of all traces with geometric means, in all and by kind of text.

    For each cost: the priced speedups, and ratios of ours to the best of a family in hindsight and of our
    drop-in class to the original.
    """
    grids = []
    for cost in plan.costs:
        grids.append(
            _summary(f"priced speedup at cost {cost.name}", list(_speedups(plan, cost.name).items()), results)
        )
        relative = list(_relative(plan, cost.name).items())
        if relative:
            grids.append(_summary(f"speedup ratios at cost {cost.name}", relative, results))
    return grids


def headline_grids(results: Sequence[TraceResult], plan: Plan) -> list[Grid]:
    """Tables for docs/performance.md: ours at each cost beside the best in hindsight, calibration, the
    drop-in class.
    """
    names = [cost.name for cost in plan.costs]
    specs = {spec.key: spec for spec in plan.methods}
    speed: list[tuple[str, Column]] = []
    few = min(families(plan.methods).items(), key=lambda item: len(item[1]), default=None)
    for cost, key in MODES.items():
        if cost not in names or key not in specs:
            continue
        speed.append((f"{specs[key].title}, at {cost}", _of(key, cost)))
        if few is not None:
            best = _best([s.key for s in few[1]], cost)
            speed.append((f"/ {hindsight(*few)}", _divided(_of(key, cost), best)))
    if "curve" in names and _CURVE_MODE in specs:
        speed.append((f"{specs[_CURVE_MODE].title}, by the curve", _of(_CURVE_MODE, "curve")))
    grids = [_summary("priced speedup", speed, results)] if speed else []
    calibration = {
        f"{figure}, {spec.title}": _calibration(spec.key, "0.05", name)
        for spec in plan.methods
        if spec.cost_aware and "0.05" in names
        for figure, name in (("ECE", "ece"), ("gap", "largest_bin_gap"))
    }
    if calibration:
        grid = Grid(["calibration at cost 0.05", *calibration])
        for result in results:
            grid.rows.append([result.name, *(_ratio(value(result)) for value in calibration.values())])
        grids.append(grid)
    for spec in plan.methods:
        if spec.instead_of in specs:
            columns = {
                f"at {cost}": _divided(_of(spec.key, cost), _of(spec.instead_of, cost)) for cost in names
            }
            title = f"{spec.title} / {specs[spec.instead_of].title}"
            grids.append(_summary(title, list(columns.items()), results))
    return grids


def _summary(title: str, columns: Sequence[tuple[str, Column]], results: Sequence[TraceResult]) -> Grid:
    grid = Grid([title, *(heading for heading, _ in columns)])
    for result in results:
        grid.rows.append([result.name, *(_ratio(value(result)) for _, value in columns)])
    for kind, of_kind in _by_kind(results).items():
        if len(of_kind) > 1:
            grid.summaries.append([f"geometric mean, {kind} ({len(of_kind)})", *_means(columns, of_kind)])
    grid.summaries.append([f"geometric mean ({len(results)})", *_means(columns, results)])
    grid.summaries.append(["lowest", *(_ratio(_lowest(v, results)) for _, v in columns)])
    return grid


def hindsight(family: str, specs: Sequence[MethodSpec]) -> str:
    """Name of the best of a family's configurations."""
    return f"{family.partition('-')[0].capitalize()}, best of {len(specs)} in hindsight"


def _of(key: str, cost: str) -> Column:
    return lambda result: None if (run := result.run(key, cost)) is None else run.speedups[cost]


def _best(keys: Sequence[str], cost: str) -> Column:
    return lambda result: None if (run := result.best(keys, cost)) is None else run.speedups[cost]


def _divided(own: Column, other: Column) -> Column:
    def value(result: TraceResult) -> float | None:
        a, b = own(result), other(result)
        return a / b if a and b else None

    return value


def _calibration(key: str, cost: str, figure: str) -> Column:
    def value(result: TraceResult) -> float | None:
        run = result.run(key, cost)
        return None if run is None or run.reliability is None else float(run.reliability[figure])

    return value


def _speedups(plan: Plan, cost: str) -> dict[str, Column]:
    """Heading -> speedup of a trace: of methods, and of families in hindsight."""
    columns = {spec.title: _of(spec.key, cost) for spec in listed(plan.methods)}
    best = {
        hindsight(name, specs): _best([spec.key for spec in specs], cost)
        for name, specs in families(plan.methods).items()
    }
    return columns | best


def _relative(plan: Plan, cost: str) -> dict[str, Column]:
    """Heading -> ratio of a cost-aware method to a family's best, and of the drop-in class to
    the original."""

    columns = {
        f"{spec.title} / {name.partition('-')[0].capitalize()}, best of {len(specs)}": _divided(
            _of(spec.key, cost), _best([s.key for s in specs], cost)
        )
        for name, specs in families(plan.methods).items()
        for spec in plan.methods
        if spec.cost_aware
    }
    here = {spec.key: spec for spec in plan.methods}
    for spec in plan.methods:
        if spec.instead_of in here:
            other = here[spec.instead_of]
            heading = f"{spec.title} / {other.title}"
            columns[heading] = _divided(_of(spec.key, cost), _of(other.key, cost))
    return columns


def _means(columns: Sequence[tuple[str, Column]], results: Sequence[TraceResult]) -> list[str]:
    values = ([v for r in results if (v := value(r)) is not None] for _, value in columns)
    return [_ratio(geometric_mean(found) or None) for found in values]


def _lowest(value: Column, results: Sequence[TraceResult]) -> float | None:
    return min((v for r in results if (v := value(r)) is not None), default=None)


def _by_kind(results: Sequence[TraceResult]) -> dict[str, list[TraceResult]]:
    kinds: dict[str, list[TraceResult]] = {}
    for result in results:
        kinds.setdefault(result.kind, []).append(result)
    return kinds if len(kinds) > 1 else {}


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _detail(run: Run) -> list[str]:
    rates, us = run.rates, run.rates["microseconds"]
    layers = [rates["layers"][name]["tokens_accepted"] for name in ("prompt", "suffix")]
    reliability = run.reliability
    return [
        f"{rates['steps_with_draft']:.1%}",
        f"{rates['steps_with_hit']:.1%}",
        f"{rates['tokens_accepted']:.1%}",
        *(f"{layer:.1%}" if sum(layers) else "" for layer in layers),
        "" if reliability is None else f"{reliability['ece']:.3f}",
        "" if reliability is None else f"{reliability['largest_bin_gap']:.3f}",
        *(f"{us[p]:.0f}" for p in ("p50", "p90", "p99")),
        f"{rates['memory_bytes'] / 1e6:.1f}",
    ]
