"""HTML report of a comparison: tables and plots in one self-contained page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from suffixsvc_bench.replay.charts import charts
from suffixsvc_bench.replay.compare import Plan, TraceResult
from suffixsvc_bench.replay.grids import (
    describe,
    families,
    hindsight,
    listed,
    summary_grids,
    trace_grids,
)
from suffixsvc_bench.report.html_page import figure, write_page
from suffixsvc_bench.report.statistics import geometric_mean
from suffixsvc_bench.report.tables import html_grid

__all__ = ["write_report"]

#: introduction and glossary of the page
_INTRODUCTION: Final = Path(__file__).with_name("introduction.html")


def write_report(
    path: Path, results: Sequence[TraceResult], plan: Plan, facts: Sequence[tuple[str, str]]
) -> None:
    """Write the page atomically.

    Args:
        facts: (name, value) lines on the run.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    body = [_facts(facts), _methods(plan), "<h2>All traces</h2>"]
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
        mean = {}
        for spec in listed(plan.methods):
            runs = [run for r in results if (run := r.run(spec.key, cost.name)) is not None]
            mean[spec] = geometric_mean([run.speedups[cost.name] for run in runs])
        ours = [spec for spec, value in mean.items() if spec.cost_aware and value]
        others = [spec for spec, value in mean.items() if value and not (spec.cost_aware or spec.instead_of)]
        if ours and others:
            first, second = max(ours, key=mean.__getitem__), max(others, key=mean.__getitem__)
            lines.append(
                f"<li>at cost {html.escape(cost.name)}: <b>{mean[first]:.2f}</b> "
                f"with {html.escape(first.title)}; {mean[second]:.2f} with {html.escape(second.title)}, "
                "the best of the others</li>"
            )
    over = f"the geometric mean of {len(results)} traces" if len(results) > 1 else "one trace"
    return f"<p>Speedups in this run ({over}):</p><ul>{''.join(lines)}</ul>" if lines else ""


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{html.escape(n)}</td><td>{html.escape(v)}</td></tr>" for n, v in facts)
    return f"<table>{rows}</table>"


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
