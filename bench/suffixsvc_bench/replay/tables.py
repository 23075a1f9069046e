"""A comparison as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from suffixsvc_bench.methods import MethodSpec
from suffixsvc_bench.replay.compare import Plan, Run, TraceResult, geometric_mean

__all__ = ["families", "print_summary", "print_trace"]


def families(methods: Sequence[MethodSpec]) -> dict[str, list[MethodSpec]]:
    """Configurations of one thing, by family; a family of one is none."""
    found: dict[str, list[MethodSpec]] = {}
    for spec in methods:
        if spec.family:
            found.setdefault(spec.family, []).append(spec)
    return {name: specs for name, specs in found.items() if len(specs) > 1}


def listed(methods: Sequence[MethodSpec]) -> list[MethodSpec]:
    """Methods with rows of their own: of a family, only its first member."""
    firsts = {name: specs[0].key for name, specs in families(methods).items()}
    return [spec for spec in methods if firsts.get(spec.family, spec.key) == spec.key]


def print_trace(console: Console, result: TraceResult, plan: Plan) -> None:
    """Two tables of a trace: speed, and what lies behind it."""
    of = f", {', '.join(result.agents)}" if result.agents else ""
    warm = f", after {result.warming_calls} calls that warmed the caches" if result.warming_calls else ""
    console.print(
        f"[bold]{result.name}[/] ({result.kind}{of}): {result.calls} calls, {result.tokens} tokens{warm}",
        highlight=False,
        soft_wrap=True,
    )
    costs = [cost.name for cost in plan.costs]
    rows = [(spec, run) for spec in listed(plan.methods) for run in _runs(result, spec)]
    speed = _table("method", ["drafts for", "K", "MAT", "drafted/step", "acceptance"])
    for name in costs:
        speed.add_column(f"speedup at {name}", justify="right")
    behind = _table("method", ["drafts for", "draft", "hit", "accepted", "prompt", "suffix", "ECE", "gap"])
    for heading in ("µs p50", "p90", "p99", "MB"):
        behind.add_column(heading, justify="right")
    for spec, run in rows:
        rates = run.rates
        speed.add_row(
            spec.title,
            run.cost or "any",
            str(run.k),
            f"{rates['mean_accepted_tokens']:.2f}",
            f"{rates['drafted_per_step']:.2f}",
            f"{rates['acceptance_rate']:.1%}",
            *(_speedup(run, name) for name in costs),
        )
        behind.add_row(spec.title, run.cost or "any", *_behind(run))
    for family, specs in families(plan.methods).items():
        keys = [spec.key for spec in specs]
        best = {name: result.best(keys, name) for name in costs}
        cells = ["" if run is None else _speedup(run, name) for name, run in best.items()]
        speed.add_row(f"{family}, best in hindsight of {len(keys)}", "", "", "", "", "", *cells)
    console.print(speed)
    console.print(behind)


def print_summary(console: Console, results: Sequence[TraceResult], plan: Plan) -> None:
    """Priced speedups of all traces, a table a cost, with geometric means in all and by kind of text."""
    for cost in plan.costs:
        columns = _columns(plan, cost.name)
        table = _table(f"priced speedup at cost {cost.name}", list(columns))
        for result in results:
            table.add_row(result.name, *(_ratio(value(result)) for value in columns.values()))
        table.add_section()
        for kind, of_kind in _by_kind(results).items():
            if len(of_kind) > 1:
                table.add_row(f"geometric mean, {kind} ({len(of_kind)})", *_means(columns, of_kind))
        table.add_row("geometric mean", *_means(columns, results))
        table.add_row("lowest", *(_ratio(_lowest(value, results)) for value in columns.values()))
        console.print(table)


Column = Callable[[TraceResult], float | None]


def _columns(plan: Plan, cost: str) -> dict[str, Column]:
    """Heading -> the value of a trace: methods, families in hindsight, and ours relative to those."""

    def of(key: str) -> Column:
        return lambda result: None if (run := result.run(key, cost)) is None else run.speedups[cost]

    def best(keys: list[str]) -> Column:
        return lambda result: None if (run := result.best(keys, cost)) is None else run.speedups[cost]

    def relative(own: Column, other: Column) -> Column:
        def value(result: TraceResult) -> float | None:
            a, b = own(result), other(result)
            return a / b if a and b else None

        return value

    columns = {spec.title: of(spec.key) for spec in listed(plan.methods)}
    for family, specs in families(plan.methods).items():
        hindsight = best([spec.key for spec in specs])
        columns[f"{family}, best in hindsight of {len(specs)}"] = hindsight
        for spec in plan.methods:
            if spec.priced:
                columns[f"{spec.title} / {family} best"] = relative(of(spec.key), hindsight)
    return columns


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


def _runs(result: TraceResult, spec: MethodSpec) -> list[Run]:
    return [run for run in result.runs if run.method == spec.key and not run.sweep]


def _table(first: str, headings: Sequence[str]) -> Table:
    table = Table()
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _speedup(run: Run, cost: str) -> str:
    return _ratio(run.speedups.get(cost))


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
