"""``suffixsvc bench index``: the hot index under load."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["bench_index"]


def bench_index(
    sizes: Annotated[
        str, typer.Option(help="Tokens in the index at which it is measured, e.g. 1M,10M,100M.")
    ] = "1M",
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of text (random, realistic, repetitive); can be repeated."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="A recorded log as well, repeated under permuted token ids up to each size."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json (plain or .gz), for a log of texts.")
    ] = None,
    output_tokens: Annotated[int, typer.Option(min=1, help="Length of an output.")] = 500,
    max_draft: Annotated[int, typer.Option(min=1, help="Draft at most so many tokens a step.")] = 16,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    peer: Annotated[
        bool,
        typer.Option(
            "--peer/--no-peer", help="Run Arctic Inference's tree as well, where make peers built it."
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure ingest, memory, step latency, removal and opening of the hot index as it grows.

    The peer, where it can be imported, does the same work in the same run, in turns of 100 outputs (up to
    10M tokens). Texts are synthetic and reproducible from --seed; "realistic" repeats phrases as agents do.
    """
    from suffixsvc_bench.index_bench import KINDS, IndexBenchOptions, run_index_bench
    from suffixsvc_bench.replay.inputs import read_encoder

    options = IndexBenchOptions(
        sizes=tuple(_tokens(part) for part in sizes.split(",")),
        kinds=tuple(kind) if kind else tuple(KINDS),
        log=log,
        encode=read_encoder(tokenizer) if tokenizer else None,
        output_tokens=output_tokens,
        max_draft_tokens=max_draft,
        seed=seed,
        peer=peer,
    )
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        results = run_index_bench(
            options, lambda what, share: bar.update(task, description=what, completed=share)
        )
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print(results)


def _tokens(size: str) -> int:
    from suffixsvc.errors import InvalidInputError

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*", size)
    tokens = int(float(match[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]) if match else 0
    if tokens <= 0:
        raise InvalidInputError("that is no size", expected="e.g. 500k or 1M", got=size)
    return tokens


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    beside = "ours / Arctic" if results["peer"] else "ours"
    for name, text in results["texts"].items():
        table = Table(title=f"{name} ({beside})", title_justify="left")
        table.add_column("")
        for at in text["sizes"]:
            table.add_column(f"{at['tokens'] / 1e6:g}M tokens", justify="right")
        for label, cell in _ROWS:
            table.add_row(label, *(cell(at) for at in text["sizes"]))
        console.print(table)
        half, end = text["removal"][5], text["removal"][-1]
        console.print(
            f"removing {text['removal'][0]['tokens']} tokens, the oldest first: half of them leave "
            f"{half['bytes'] / text['removal'][0]['bytes']:.0%} of the bytes, all leave "
            f"{end['of_empty']:.2f} x an empty index",
            soft_wrap=True,
        )
    where = results["provenance"]
    console.print(
        f"seed {results['options']['seed']}, suffixsvc {where['suffixsvc']} ({where['commit']}), "
        f"Python {where['python']}, {where['cores']} x {where['cpu']}, "
        f"load average {results['load_average'][0]:.1f}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


def _pair(at: dict[str, Any], ours: str, peer: str, form: str) -> str:
    return form.format(at[ours]) + (" / " + form.format(at[peer]) if peer in at else "")


def _step(at: dict[str, Any], sort: str, what: str) -> str:
    def both(values: dict[str, float]) -> str:
        return f"{values['p50']:.1f} ({values['p99']:.0f})"

    steps = at["steps"][sort]
    peer = steps.get(f"peer {what}")
    return both(steps[what]) + (f" / {both(peer)}" if peer else "")


_ROWS: list[tuple[str, Any]] = [
    (
        "ingest, us a token",
        lambda at: _pair(at, "ingest_us_per_token", "peer_ingest_us_per_token", "{:.2f}"),
    ),
    (
        "bytes a token (resident)",
        lambda at: _pair(at, "resident_bytes_per_token", "peer_resident_bytes_per_token", "{:.0f}"),
    ),
    ("bytes a token (counted)", lambda at: f"{at['bytes_per_token']:.1f}"),
    ("new text: append, us p50 (p99)", lambda at: _step(at, "new text", "append_us")),
    ("new text: draft", lambda at: _step(at, "new text", "draft_us")),
    ("new text: step, through Python", lambda at: _step(at, "new text", "step_us")),
    ("known text: append", lambda at: _step(at, "known text", "append_us")),
    ("known text: draft", lambda at: _step(at, "known text", "draft_us")),
    ("known text: step, through Python", lambda at: _step(at, "known text", "step_us")),
    (
        "remove an output, ms",
        lambda at: _pair(at, "remove_ms_per_output", "peer_remove_ms_per_output", "{:.2f}"),
    ),
    ("open a session, ms", lambda at: _pair(at, "open_ms", "peer_open_ms", "{:.1f}")),
]
