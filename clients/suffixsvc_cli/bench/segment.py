"""``suffixsvc bench segment``: sealed segments without the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson


def bench_segment(
    sizes: Annotated[
        str, typer.Option(help="Comma-separated segment sizes in tokens, at least 50k, e.g. 1M,10M,100M.")
    ] = "1M",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Parent of the scratch folder (20 bytes per token, removed at the end)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure sealed segments: building, merging, opening, bytes per token, drafts, forgetting.

    Draft times are those of the segment's index alone, without a session; bench index measures drafts through
    the engine.
    """
    from suffixsvc_bench.index.parts.segment import SMALLEST, run_segment_bench, segment_grids
    from suffixsvc_bench.report.output import print_results, report_progress
    from suffixsvc_caches.sizes import parse_count

    chosen = [parse_count(size, "--sizes", SMALLEST) for size in sizes.split(",")]
    with report_progress() as report:
        results = run_segment_bench(chosen, seed, folder, report)
    print_results(results, segment_grids, as_json=as_json, seed=seed)
