"""The index benchmark as one HTML page that needs nothing but itself."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from suffixsvc_bench.html_page import figure, write_page
from suffixsvc_bench.index_bench.charts import index_charts
from suffixsvc_bench.index_bench.tables import holds_grid, index_grids, removal_line, restart_grid
from suffixsvc_bench.provenance import Provenance
from suffixsvc_bench.tables import html_grid

__all__ = ["write_index_report"]

_INTRODUCTION: Final = """<h1>The index as it grows</h1>
<p>suffixsvc remembers the tokens (words, or pieces of words) that language models wrote, in an
<em>index</em> that is asked after every step of a model: what followed the last time somebody wrote this?
The answer, a <em>draft</em>, is checked by the model in one go. This page shows what remembering costs: time
and memory to add text, time to draft, what comes back when text is removed, and how soon a folder can be
drafted from after a restart.</p>
<p class=small>Texts are synthetic and reproducible from the seed. <b>random</b>: nothing repeats, the index
at its largest; <b>realistic</b>: phrases come again as in the work of agents, and new ones keep coming;
<b>repetitive</b>: few phrases, again and again. A log's name: that log again and again under other token
ids. <b>Arctic</b>: Arctic Inference's suffix tree, in the same run. <b>p50</b>, <b>p99</b>: half of the
steps, 99 in 100, took less. <b>Resident</b>: memory that the process really holds. <b>Compacted</b>:
everything is moved into files that are mapped, not read, when the folder is opened again.</p>
"""


def write_index_report(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page; it appears complete or not at all.

    Raises:
        InvalidInputError: it cannot be written.
    """
    where = Provenance(**results["provenance"])
    body = [_INTRODUCTION]
    for name, grid in index_grids(results):
        body.append(html_grid(grid) + f"<p>{html.escape(removal_line(results['texts'][name]))}</p>")
        body.append(html_grid(holds_grid(results["texts"][name])))
    if results["restart"] is not None:
        body.append(html_grid(restart_grid(results["restart"])))
    body += map(figure, index_charts(results))
    made = f"{where.line()}, {where.machine}, seed {results['options']['seed']}"
    body.append(f"<p class=small>{html.escape(made)}</p>")
    write_page(path, "suffixsvc: the index as it grows", "\n".join(body))
