"""``suffixsvc bench index``: the hot index under load."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from suffixsvc.cli.options import LogTokenizer, PageOfPlots

__all__ = ["bench_index"]


def bench_index(
    sizes: Annotated[
        str,
        typer.Option(
            help="Tokens in the index at which it is measured, e.g. 1M,10M,100M; 100 outputs at least."
        ),
    ] = "1M",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of text (random, realistic, repetitive); can be repeated."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="A recorded log as well, repeated under permuted token ids up to each size."),
    ] = None,
    tokenizer: LogTokenizer = None,
    output_tokens: Annotated[int, typer.Option(min=1, help="Length of an output.")] = 500,
    max_draft: Annotated[int, typer.Option(min=1, help="Draft at most so many tokens a step.")] = 16,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    peer: Annotated[
        bool,
        typer.Option(
            "--peer/--no-peer", help="Run Arctic Inference's tree as well, where make peers built it."
        ),
    ] = True,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart/--no-restart", help="Fill a folder of each size as well, and open it in a new process."
        ),
    ] = True,
    folder: Annotated[
        Path | None,
        typer.Option(help="Make those folders below this one (up to 100 bytes a token, removed again)."),
    ] = None,
    report: PageOfPlots = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure ingest, memory, step latency, removal, opening and a restart of the index as it grows.

    The peer, where it can be imported, does the same work in the same run, in turns of 100 outputs (up to
    10M tokens). Texts are synthetic and reproducible from --seed; "realistic" repeats phrases as agents do.
    """
    from suffixsvc_bench.index_bench import KINDS, IndexBenchOptions, run_index_bench
    from suffixsvc_bench.output import Told, require_folder, require_place
    from suffixsvc_client.text import TextCodec

    require_place(report)
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
    with Told() as told:
        results = run_index_bench(options, told.share)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print(results)
    if report is not None:
        from suffixsvc_bench.index_bench.report import write_index_report

        write_index_report(report, results)


def _tokens(size: str) -> int:
    from suffixsvc.errors import InvalidInputError

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*", size)
    tokens = int(float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]) if match else 0
    if tokens <= 0:
        raise InvalidInputError("that is no size", expected="e.g. 500k or 1M", got=size)
    return tokens


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console
    from suffixsvc_bench.index_bench.tables import holds_grid, index_grids, removal_line, restart_grid
    from suffixsvc_bench.provenance import Provenance
    from suffixsvc_bench.tables import print_grid

    console = Console()
    for name, grid in index_grids(results):
        print_grid(console, grid)
        console.print(removal_line(results["texts"][name]), soft_wrap=True)
        print_grid(console, holds_grid(results["texts"][name]))
    if results["restart"] is not None:
        print_grid(console, restart_grid(results["restart"]))
    where = Provenance(**results["provenance"])
    console.print(
        f"seed {results['options']['seed']}, {where.line()}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
