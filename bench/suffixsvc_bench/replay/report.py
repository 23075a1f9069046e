"""The report: one HTML page with tables and plots that needs nothing but itself."""

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
    html_grid,
    listed,
    summary_grids,
    trace_grids,
)
from suffixsvc_bench.replay.plots import COLOURS, Chart, svg

__all__ = ["write_report"]

#: the page around the plots: explanations, colours for light and dark
_TEMPLATE: Final = Path(__file__).with_name("page.html")


def write_report(
    path: Path, results: Sequence[TraceResult], plan: Plan, facts: Sequence[tuple[str, str]]
) -> None:
    """Write the page; it appears complete or not at all.

    Args:
        facts: (name, value) lines on how it was made.

    Raises:
        OSError: it cannot be written.
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
    page = _TEMPLATE.read_text(encoding="utf-8").replace("@BODY@", "\n".join(body))
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(page, encoding="utf-8")
    draft.replace(path)


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{html.escape(n)}</td><td>{html.escape(v)}</td></tr>" for n, v in facts)
    return f"<table>{rows}</table>"


def _methods(plan: Plan) -> str:
    rows = [
        (
            spec.title,
            f"{spec.explained}; K = {spec.default_k if plan.k is None else plan.k}",
            "compiled" if spec.native else "written anew in Python",
            spec.memory,
        )
        for spec in listed(plan.methods)
    ]
    for family, specs in families(plan.methods).items():
        chosen = f"the best of {len(specs)} configurations, chosen per trace and cost after the fact"
        rows.append((hindsight(family, specs), chosen, "", ""))
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    head = "<tr><th>method</th><th>what it does</th><th>its microseconds</th><th>its memory counts</th></tr>"
    return f"<h2>Methods</h2><div class=wide><table>{head}{body}</table></div>"


def _plots(results: Sequence[TraceResult], plan: Plan) -> list[str]:
    return [_figure(chart) for chart in charts(results, plan)]


def _figure(chart: Chart) -> str:
    names = "".join(
        f'<span class="key c{s.colour % COLOURS}{" dashed" if s.dashed else ""}">{html.escape(s.name)}</span>'
        for s in chart.series
        if s.points
    )
    return (
        f"<figure><h3>{html.escape(chart.title)}</h3>{svg(chart)}"
        f"<p class=legend>{names}</p><figcaption>{html.escape(chart.caption)}</figcaption></figure>"
    )
