"""HTML report of the index benchmark, one self-contained page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from suffixsvc_bench.index.charts import index_charts
from suffixsvc_bench.index.tables import index_parts
from suffixsvc_bench.report.html_page import figure, write_page
from suffixsvc_bench.report.provenance import Provenance
from suffixsvc_bench.report.tables import Grid, html_grid

_INTRODUCTION: Final = """<h1>The index as it grows</h1>
<p>suffixsvc stores the tokens (words, or pieces of words) that language models wrote in an
<em>index</em>. It is queried after every step of a model for a continuation of the text, the
<em>draft</em>, which the model verifies in one step. This page shows the costs: time and memory to add text,
time to draft, memory that is freed when text is removed, and the time from a restart to the first draft.</p>
<p class=small>Texts are synthetic and reproducible from the seed. <b>random</b>: no repetition, the largest
index; <b>realistic</b>: phrases repeat as in the work of agents, and new ones keep appearing;
<b>repetitive</b>: few phrases. A log's name: that log repeated under permuted token ids. <b>Arctic</b>:
Arctic Inference's suffix tree, in the same run. <b>p50</b>, <b>p99</b>: median and 99th percentile of the
steps. <b>Resident</b>: resident memory of the process. <b>Compacted</b>: all outputs are in segment files,
which are mapped when the folder is opened.</p>
"""


def write_index_report(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page atomically.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    origin = Provenance(**results["provenance"])
    body = [_INTRODUCTION]
    for part in index_parts(results):
        body.append(html_grid(part) if isinstance(part, Grid) else f"<p>{html.escape(part)}</p>")
    body += map(figure, index_charts(results))
    made = f"{origin.line()}, {origin.machine}, seed {results['options']['seed']}"
    body.append(f"<p class=small>{html.escape(made)}</p>")
    write_page(path, "suffixsvc: the index as it grows", "\n".join(body))
