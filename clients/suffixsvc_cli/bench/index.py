"""``suffixsvc bench index``: the in-memory index under load."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from suffixsvc_cli.base.options import LogTokenizer, PageOfPlots

__all__ = ["bench_index"]


def bench_index(
    sizes: Annotated[
        str,
        typer.Option(
            help="Comma-separated index sizes in tokens at which it is measured, e.g. 1M,10M,100M; at "
            "least 100 outputs."
        ),
    ] = "1M",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Kind of text: random, realistic or repetitive. Repeatable. Default: all."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Also use a recorded log, repeated under permuted token ids up to each size."),
    ] = None,
    tokenizer: LogTokenizer = None,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an output.")] = 500,
    max_draft: Annotated[int, typer.Option(min=1, help="Maximum drafted tokens per step.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 1,
    peer: Annotated[
        bool,
        typer.Option(
            "--peer/--no-peer", help="Also run Arctic Inference's tree if it is installed (make peers)."
        ),
    ] = True,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart/--no-restart",
            help="Also fill a data folder of each size and open it in a new process.",
        ),
    ] = True,
    folder: Annotated[
        Path | None,
        typer.Option(help="Parent of these folders (up to 100 bytes per token, removed at the end)."),
    ] = None,
    report: PageOfPlots = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure ingest, memory, step latency, removal, opening and restart of the index by its size.

    The peer, if installed, does the same work in the same run, alternating in blocks of 100 outputs (up to
    10M tokens). Texts are synthetic and reproducible from --seed; "realistic" repeats phrases as agents do.
    """
    from suffixsvc_bench.index import KINDS, IndexBenchOptions, run_index_bench
    from suffixsvc_bench.report.output import ProgressReporter, require_file_path, require_folder
    from suffixsvc_client.text import TextCodec

    require_file_path(report)
    require_folder(folder)
    options = IndexBenchOptions(
        sizes=tuple(_tokens(part) for part in sizes.split(",")),
        kinds=tuple(kind) if kind else tuple(KINDS),
        log=log,
        encode=TextCodec.load(tokenizer).encode if tokenizer else None,
        output_tokens=output_tokens,
        max_draft_tokens=max_draft,
        seed=seed,
        peer=peer,
        restart=(kind[0] if kind else "realistic") if restart else "",
        folder=folder,
    )
    with ProgressReporter() as progress:
        results = run_index_bench(options, progress.update)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print(results)
    if report is not None:
        from suffixsvc_bench.index.report import write_index_report

        write_index_report(report, results)


def _tokens(size: str) -> int:
    from suffixsvc.errors import InvalidInputError

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*", size)
    tokens = int(float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]) if match else 0
    if tokens <= 0:
        raise InvalidInputError("--sizes must be positive numbers", expected="e.g. 500k,1M", got=size)
    return tokens


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console

    from suffixsvc_bench.index.tables import holds_grid, index_grids, removal_line, restart_grid
    from suffixsvc_bench.report.provenance import Provenance
    from suffixsvc_bench.report.tables import print_grid

    console = Console()
    for name, grid in index_grids(results):
        print_grid(console, grid)
        console.print(removal_line(results["texts"][name]), soft_wrap=True)
        print_grid(console, holds_grid(results["texts"][name]))
    if results["restart"] is not None:
        print_grid(console, restart_grid(results["restart"]))
    origin = Provenance(**results["provenance"])
    console.print(
        f"seed {results['options']['seed']}, {origin.line()}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
