"""``suffixsvc bench segment``: sealed segments alone, without the engine around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench_segment"]


def bench_segment(
    sizes: Annotated[str, typer.Option(help="Tokens in the segment, at least 50k, e.g. 1M,10M,100M.")] = "1M",
    seed: Annotated[int, typer.Option(min=0, help="Of the texts.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Make the files below this folder (20 bytes a token, removed again).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure sealed segments: building, merging, opening, bytes a token, drafts, forgetting.

    Times of drafts are those of the segment's index alone, without what a session adds; bench index measures
    them through the engine.
    """
    from rich.console import Console
    from suffixsvc_bench.output import Told
    from suffixsvc_bench.provenance import Provenance
    from suffixsvc_bench.segment_bench import parse_size, run_segment_bench, segment_grid
    from suffixsvc_bench.tables import print_grid

    chosen = [parse_size(size) for size in sizes.split(",")]
    with Told() as told:
        results = run_segment_bench(chosen, seed, folder, told.share)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    console = Console()
    print_grid(console, segment_grid(results))
    line = f"seed {seed}, {Provenance(**results['provenance']).line()}"
    console.print(line, style="dim", highlight=False, soft_wrap=True)
