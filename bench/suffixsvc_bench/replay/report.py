"""HTML report of a comparison: tables and plots, with their captions, in one self-contained page."""

from __future__ import annotations

import html
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

from suffixsvc.plots import COLOURS, Chart, Series
from suffixsvc_bench.methods import MethodSpec
from suffixsvc_bench.replay.compare import Plan, Run, TraceResult
from suffixsvc_bench.replay.grids import describe, families, hindsight, listed, summary_grids, trace_grids
from suffixsvc_bench.replay.stats import pooled, total_cost
from suffixsvc_bench.report.html_page import facts_table, figure, write_page
from suffixsvc_bench.report.statistics import geometric_mean
from suffixsvc_bench.report.tables import html_grid

#: introduction and glossary of the page
_INTRODUCTION: Final = Path(__file__).with_name("introduction.html")

_CAPTIONS: Final = tomllib.loads(Path(__file__).with_name("captions.toml").read_text(encoding="utf-8"))
#: points of a time line
_WINDOWS: Final = 20
#: points of a curve over costs
_COSTS: Final = 25

Points = list[tuple[float, float]]


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


def _caption(name: str, results: Sequence[TraceResult], how: str, cost: str = "") -> str:
    averaged = f" {how}, {len(results)} traces." if len(results) > 1 else ""
    return " ".join(_CAPTIONS[name].format(cost=cost).split()) + averaged


def _lines(plan: Plan, points: Callable[[MethodSpec], Points]) -> list[Series]:
    return [Series(spec.title, points(spec), colour) for colour, spec in enumerate(listed(plan.methods))]


def _main_cost(plan: Plan) -> str:
    """Cost of the plots without a cost axis: 0.05 if it was requested, else the first."""
    names = [cost.name for cost in plan.costs]
    return "0.05" if "0.05" in names else names[0]


def _speedup_by_cost(results: Sequence[TraceResult], plan: Plan) -> Chart:
    floats = {cost.name: cost.cost for cost in plan.costs if isinstance(cost.cost, float) and cost.cost > 0}
    low, high = min([0.01, *floats.values()]), max([0.2, *floats.values()])
    grid = [low * (high / low) ** (i / (_COSTS - 1)) for i in range(_COSTS)]

    def best_of(specs: Sequence[MethodSpec]) -> Points:
        """Fixed configurations, scored at every cost."""
        runs = [[run for spec in specs if (run := _widest(result, spec))] for result in results]
        return [
            (c, geometric_mean([max(_priced(run, c) for run in some) for some in runs if some])) for c in grid
        ]

    def points(spec: MethodSpec) -> Points:
        if not spec.cost_aware:
            return best_of([spec])
        found = ((c, [r.speedup([spec], name) for r in results]) for name, c in floats.items())
        means = [(c, geometric_mean([s for s in speedups if s is not None])) for c, speedups in found]
        return sorted(point for point in means if point[1])

    series = [
        replace(line, dashed=not spec.cost_aware)
        for line, spec in zip(_lines(plan, points), listed(plan.methods), strict=True)
    ]
    for number, (family, specs) in enumerate(families(plan.methods).items()):
        series.append(Series(hindsight(family, specs), best_of(specs), COLOURS - 1 - number, dashed=True))
    return Chart(
        "Speedup against the cost of a drafted token",
        _caption("speedup", results, "Geometric mean"),
        "cost of a drafted token, in plain steps",
        "speedup",
        series,
        log_x=True,
        level=1.0,
    )


def _by_width(results: Sequence[TraceResult], plan: Plan) -> list[Chart]:
    def lines(value: Callable[[Run], float], mean: Callable[[Sequence[float]], float]) -> list[Series]:
        def points(spec: MethodSpec) -> Points:
            runs = [run for r in results for run in r.runs if run.sweep and run.method == spec.key]
            by_k = ((k, [value(run) for run in runs if run.k == k]) for k in plan.sweep)
            return [(float(k), mean(values)) for k, values in by_k if values]

        return _lines(plan, points)

    cost, label = plan.sweep_cost.name, "K, most tokens drafted in a step"
    ticks = [float(k) for k in plan.sweep]
    return [
        Chart(
            "Acceptance against K",
            _caption("acceptance", results, "Mean", cost),
            label,
            "drafted tokens accepted",
            lines(lambda run: float(run.rates["acceptance_rate"]), fmean),
            percent_y=True,
            x_ticks=ticks,
        ),
        Chart(
            f"Speedup at cost {cost} against K",
            _caption("width", results, "Geometric mean", cost),
            label,
            "speedup",
            lines(lambda run: run.speedups[cost], geometric_mean),
            level=1.0,
            x_ticks=ticks,
        ),
    ]


def _hits_by_history(results: Sequence[TraceResult], plan: Plan) -> Chart:
    def points(spec: MethodSpec) -> Points:
        steps, hits = Counter[int](), Counter[int]()
        for run in _main_runs(results, spec, plan):
            for before, tokens, its_steps, its_hits, _ in run.timeline:
                size = int(math.log2(max(before + tokens / 2, 1)))
                steps[size] += its_steps
                hits[size] += its_hits
        return [(2.0 ** (size + 0.5), hits[size] / steps[size]) for size in sorted(steps) if steps[size]]

    return Chart(
        "Hit rate against the size of the history",
        _caption("hits", results, "All steps pooled", _main_cost(plan)),
        "tokens written before",
        "steps with a hit",
        _lines(plan, points),
        log_x=True,
        percent_y=True,
    )


def _reliability(results: Sequence[TraceResult], plan: Plan) -> Chart:
    series = []
    for colour, spec in enumerate(listed(plan.methods)):
        found = [run.reliability for run in _main_runs(results, spec, plan) if run.reliability is not None]
        if found:
            ece, gap = fmean(r.ece for r in found), max(r.largest_bin_gap for r in found)
            name = f"{spec.title}: ECE {ece:.3f}, largest gap {gap:.3f}"
            series.append(Series(name, pooled([b for r in found for b in r.bins]), colour))
    return Chart(
        "Reliability of the draft probabilities",
        _caption("reliability", results, "Bins pooled by prediction, ECE: mean", _main_cost(plan)),
        "predicted",
        "accepted",
        series,
        percent_y=True,
        unit_square=True,
    )


def _time_line(results: Sequence[TraceResult], plan: Plan) -> Chart:
    tokens_a_trace = sum(result.tokens for result in results) / len(results)

    def points(spec: MethodSpec) -> Points:
        written, steps = Counter[int](), Counter[int]()
        for run in _main_runs(results, spec, plan):
            whole = sum(piece[1] for piece in run.timeline)
            done = 0
            for _, tokens, its_steps, _, _ in run.timeline:
                window = min(int((done + tokens / 2) / whole * _WINDOWS), _WINDOWS - 1)
                written[window] += tokens
                steps[window] += its_steps
                done += tokens
        return [((w + 0.5) / _WINDOWS * tokens_a_trace, written[w] / steps[w]) for w in sorted(steps)]

    return Chart(
        "MAT while the cache warms",
        _caption("time_line", results, "Windows of the same share of each trace pooled", _main_cost(plan)),
        "tokens written",
        "MAT",
        _lines(plan, points),
        level=1.0,
    )


def _main_runs(results: Iterable[TraceResult], spec: MethodSpec, plan: Plan) -> list[Run]:
    return [run for result in results if (run := result.run(spec.key, _main_cost(plan))) is not None]


def _widest(result: TraceResult, spec: MethodSpec) -> Run | None:
    """The run of a method that ignores costs, with its default K."""
    runs = [run for run in result.runs if run.method == spec.key and not run.sweep]
    return max(runs, key=lambda run: run.k, default=None)


def _priced(run: Run, cost: float) -> float:
    return float(run.rates["tokens"] / total_cost(run.widths, cost))


def write_report(
    path: Path, results: Sequence[TraceResult], plan: Plan, facts: Sequence[tuple[str, str]]
) -> None:
    """Write the page atomically.

    Args:
        facts: (name, value) lines on the run.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    body = [facts_table(facts), _methods(plan), "<h2>All traces</h2>"]
    body += [html_grid(grid) for grid in summary_grids(results, plan)]
    body += _plots(results, plan)
    if len(results) > 1:
        for result in results:
            inner = "".join([*map(html_grid, trace_grids(result, plan)), *_plots([result], plan)])
            body.append(f"<details><summary>{html.escape(describe(result))}</summary>{inner}</details>")
    else:
        body += [html_grid(grid) for result in results for grid in trace_grids(result, plan)]
    introduction = _INTRODUCTION.read_text(encoding="utf-8").replace("@SUMMARY@", _summary(results, plan))
    write_page(path, "suffixsvc: drafting methods compared", "\n".join([introduction, *body]))


def _summary(results: Sequence[TraceResult], plan: Plan) -> str:
    """One sentence on the results at each cost."""
    lines = []
    for cost in plan.costs:
        speedups = {s: [v for r in results if (v := r.speedup([s], cost.name))] for s in listed(plan.methods)}
        mean = {spec: value for spec, found in speedups.items() if (value := geometric_mean(found))}
        ours = max((s for s in mean if s.cost_aware), key=mean.__getitem__, default=None)
        others = [spec for spec in mean if not (spec.cost_aware or spec.instead_of)]
        second = max(others, key=mean.__getitem__, default=None)
        if ours and second:
            lines.append(
                f"<li>at cost {html.escape(cost.name)}: <b>{mean[ours]:.2f}</b> "
                f"with {html.escape(ours.title)}; {mean[second]:.2f} with {html.escape(second.title)}, "
                "the best of the others</li>"
            )
    over = f"the geometric mean of {len(results)} traces" if len(results) > 1 else "one trace"
    return f"<p>Speedups in this run ({over}):</p><ul>{''.join(lines)}</ul>" if lines else ""


def _methods(plan: Plan) -> str:
    rows = [
        (
            spec.title,
            f"{spec.description}; K = {spec.default_k if plan.k is None else plan.k}",
            "compiled" if spec.native else "reimplemented in Python",
            spec.memory,
        )
        for spec in listed(plan.methods)
    ]
    for family, specs in families(plan.methods).items():
        chosen = f"the best of {len(specs)} configurations, chosen per trace and cost afterwards"
        rows.append((hindsight(family, specs), chosen, "", ""))
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "<tr><th>method</th><th>description</th><th>microseconds</th><th>memory counts</th></tr>"
    return f"<h2>Methods</h2><div class=wide><table>{head}{body}</table></div>"


def _plots(results: Sequence[TraceResult], plan: Plan) -> list[str]:
    return [figure(chart) for chart in charts(results, plan)]
