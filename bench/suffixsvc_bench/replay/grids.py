"""A comparison as tables for people: on the terminal and in the report."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.table import Table

from suffixsvc_bench.methods import MethodSpec
from suffixsvc_bench.replay.compare import Plan, Run, TraceResult, geometric_mean

__all__ = [
    "Grid",
    "describe",
    "families",
    "hindsight",
    "html_grid",
    "listed",
    "print_grid",
    "summary_grids",
    "trace_grids",
]


Column = Callable[[TraceResult], float | None]

#: members of a family that are shown side by side
_FEW: Final = 3


def families(methods: Sequence[MethodSpec]) -> dict[str, list[MethodSpec]]:
    """Configurations of one thing, by family; a family of one is none."""
    found: dict[str, list[MethodSpec]] = {}
    for spec in methods:
        for name in spec.families:
            found.setdefault(name, []).append(spec)
    return {name: specs for name, specs in found.items() if len(specs) > 1}


def listed(methods: Sequence[MethodSpec]) -> list[MethodSpec]:
    """Methods with rows of their own: of a family with many members, only the first."""
    firsts = {name: specs[0].key for name, specs in families(methods).items() if len(specs) > _FEW}
    return [s for s in methods if all(firsts.get(name, s.key) == s.key for name in s.families)]


@dataclass(slots=True)
class Grid:
    """A table before it is drawn. Rows have a cell a heading; the first column is text, the rest figures."""

    headings: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    summaries: list[list[str]] = field(default_factory=list)  #: below a line


def print_grid(console: Console, grid: Grid) -> None:
    table = Table()
    for number, heading in enumerate(grid.headings):
        # a cut name or figure would be worse than an ugly line
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=not number)
    for row in grid.rows:
        table.add_row(*row)
    table.add_section()
    for row in grid.summaries:
        table.add_row(*row)
    console.print(table)


def html_grid(grid: Grid) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        inner = (
            f"<{tag}{' class=n' if i else ''}>{html.escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(row(cells, "td") for cells in grid.rows)
    body += "".join(row(cells, "th") for cells in grid.summaries)
    return f"<div class=wide><table>{row(grid.headings, 'th')}{body}</table></div>"


def describe(result: TraceResult) -> str:
    """A trace in a line."""
    of = f", {', '.join(result.agents)}" if result.agents else ""
    warm = f", after {result.warming_calls} calls that warmed the caches" if result.warming_calls else ""
    return f"{result.name} ({result.kind}{of}): {result.calls} calls, {result.tokens} tokens{warm}"


def trace_grids(result: TraceResult, plan: Plan) -> tuple[Grid, Grid]:
    """Two tables of a trace: speed, and what lies behind it."""
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
    behind = Grid(["method", "drafts for", *layers, "ECE", "gap", "µs p50", "p90", "p99", "MB"])
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
            behind.rows.append([spec.title, run.cost or "any", *_behind(run)])
    for family, specs in families(plan.methods).items():
        best = [result.best([spec.key for spec in specs], name) for name in costs]
        cells = [_ratio(None if r is None else r.speedups[c]) for c, r in zip(costs, best, strict=True)]
        speed.summaries.append([hindsight(family, specs), *[""] * 5, *cells])
    return speed, behind


def summary_grids(results: Sequence[TraceResult], plan: Plan) -> list[Grid]:
    """All traces, with geometric means in all and by kind of text: the priced speedups of each cost, and
    ours relative to the best of a family in hindsight."""
    grids = []
    for cost in plan.costs:
        grids.append(_summary(f"priced speedup at cost {cost.name}", _speedups(plan, cost.name), results))
        relative = _relative(plan, cost.name)
        if relative:
            grids.append(_summary(f"relative to the best in hindsight at {cost.name}", relative, results))
    return grids


def _summary(title: str, columns: Mapping[str, Column], results: Sequence[TraceResult]) -> Grid:
    grid = Grid([title, *columns])
    for result in results:
        grid.rows.append([result.name, *(_ratio(value(result)) for value in columns.values())])
    for kind, of_kind in _by_kind(results).items():
        if len(of_kind) > 1:
            grid.summaries.append([f"geometric mean, {kind} ({len(of_kind)})", *_means(columns, of_kind)])
    grid.summaries.append([f"geometric mean ({len(results)})", *_means(columns, results)])
    grid.summaries.append(["lowest", *(_ratio(_lowest(v, results)) for v in columns.values())])
    return grid


def hindsight(family: str, specs: Sequence[MethodSpec]) -> str:
    """What the best of a family's configurations is called."""
    return f"{family.partition('-')[0].capitalize()}, best of {len(specs)} in hindsight"


def _of(key: str, cost: str) -> Column:
    return lambda result: None if (run := result.run(key, cost)) is None else run.speedups[cost]


def _best(specs: Sequence[MethodSpec], cost: str) -> Column:
    keys = [spec.key for spec in specs]
    return lambda result: None if (run := result.best(keys, cost)) is None else run.speedups[cost]


def _speedups(plan: Plan, cost: str) -> dict[str, Column]:
    """Heading -> the speedup of a trace: of methods, and of families in hindsight."""
    columns = {spec.title: _of(spec.key, cost) for spec in listed(plan.methods)}
    best = {hindsight(name, specs): _best(specs, cost) for name, specs in families(plan.methods).items()}
    return columns | best


def _relative(plan: Plan, cost: str) -> dict[str, Column]:
    """Heading -> what a method that drafts for the cost reaches of a family's best."""

    def ratio(own: Column, other: Column) -> Column:
        def value(result: TraceResult) -> float | None:
            a, b = own(result), other(result)
            return a / b if a and b else None

        return value

    return {
        f"{spec.title} / {name.partition('-')[0].capitalize()}, best of {len(specs)}": ratio(
            _of(spec.key, cost), _best(specs, cost)
        )
        for name, specs in families(plan.methods).items()
        for spec in plan.methods
        if spec.priced
    }


def _means(columns: Mapping[str, Column], results: Sequence[TraceResult]) -> list[str]:
    values = ([v for r in results if (v := value(r)) is not None] for value in columns.values())
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


def _behind(run: Run) -> list[str]:
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
