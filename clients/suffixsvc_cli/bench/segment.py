"""``suffixsvc bench segment``: sealed segments without the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench_segment"]


def bench_segment(
    sizes: Annotated[
        str, typer.Option(help="Comma-separated segment sizes in tokens, at least 50k, e.g. 1M,10M,100M.")
    ] = "1M",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Parent of the scratch folder (20 bytes per token, removed at the end)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure sealed segments: building, merging, opening, bytes per token, drafts, forgetting.

    Draft times are those of the segment's index alone, without a session; bench index measures drafts through
    the engine.
    """
    from rich.console import Console

    from suffixsvc_bench.index.segment import parse_size, run_segment_bench, segment_grid
    from suffixsvc_bench.report.output import ProgressReporter
    from suffixsvc_bench.report.provenance import Provenance
    from suffixsvc_bench.report.tables import print_grid

    chosen = [parse_size(size) for size in sizes.split(",")]
    with ProgressReporter() as progress:
        results = run_segment_bench(chosen, seed, folder, progress.update)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    console = Console()
    print_grid(console, segment_grid(results))
    line = f"seed {seed}, {Provenance(**results['provenance']).line()}"
    console.print(line, style="dim", highlight=False, soft_wrap=True)
