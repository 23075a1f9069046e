"""``suffixsvc replay``: hit rates of a recorded log, from our own engine alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suffixsvc.cli.options import LogTokenizer

if TYPE_CHECKING:
    from suffixsvc_bench.replay import Call, Replay, ReplayOptions


def replay(
    logs: Annotated[
        list[Path], typer.Argument(help="Recorded logs: JSON lines, plain or .gz, a call a line.")
    ],
    tokenizer: LogTokenizer = None,
    cost: Annotated[
        float, typer.Option(help="What each drafted token costs the target, in plain decode steps.")
    ] = 0.05,
    cost_curve: Annotated[
        Path | None,
        typer.Option(
            help='A measured curve instead: JSON, a list or {"cost": list}; entry w: a step of w tokens.'
        ),
    ] = None,
    max_draft: Annotated[int, typer.Option(help="Draft at most so many tokens a step.")] = 64,
    tree: Annotated[bool, typer.Option("--tree/--chain", help="Draft trees instead of chains.")] = False,
    agent: Annotated[
        list[str] | None, typer.Option(help="Only calls of this agent; can be repeated.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Stop after so many response tokens of each log; 0 = never.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure on recorded logs what the cache would have drafted, without running a model.

    Each line of a log is a JSON object with "response_token_ids" and, optionally, "prompt_token_ids" (or
    "response" and "prompt" as texts, with --tokenizer), "agent" and "session_id".

    Every call is replayed as if it were generated now: each step drafts, accepts what agrees with the
    recorded answer and goes on behind it. Each log starts with an empty cache.

    "prompt" is evidence in the call's own prompt and answer, "suffix" evidence in earlier answers.
    MAT is tokens per step of the target (1 = no gain); "speedup" prices the drafts at --cost.

    suffixsvc bench replay compares with other methods and draws plots.
    """
    from suffixsvc_bench.provenance import provenance
    from suffixsvc_bench.replay import ReplayOptions
    from suffixsvc_bench.replay.inputs import encoder_of, read_curve
    from suffixsvc_bench.replay.traces import Selection, load_trace

    options = ReplayOptions(
        verify_cost=read_curve(cost_curve) if cost_curve else cost, max_draft_tokens=max_draft, tree=tree
    )
    encode = encoder_of(tokenizer) if tokenizer else None
    where = provenance()
    results: dict[str, Replay] = {}
    for log in logs:
        trace = load_trace(log, encode, Selection(agents=tuple(agent or ()), max_tokens=max_tokens))
        results[str(log)] = _run(trace.calls, options, log.name)
    if as_json:
        report = {"provenance": where.as_dict(), "cost": "curve" if cost_curve else cost, "tree": tree}
        typer.echo(json.dumps(report | {"logs": {name: r.rates() for name, r in results.items()}}, indent=2))
        return
    _print(results, where.line())


def _run(calls: Sequence[Call], options: ReplayOptions, title: str) -> Replay:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from suffixsvc_bench.replay import replay

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=len(calls))
        return replay(calls, options, progress=lambda _: bar.advance(task))


def _print(results: dict[str, Replay], where: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, result in results.items():
        rates = result.rates()
        table = Table(title=name, title_justify="left")
        table.add_column("layer")
        for heading in ("steps with a draft", "steps with a hit", "tokens accepted", "acceptance"):
            table.add_column(heading, justify="right")
        for layer, row in [*rates["layers"].items(), ("all", rates)]:
            columns = ("steps_with_draft", "steps_with_hit", "tokens_accepted", "acceptance_rate")
            table.add_row(layer, *(f"{row[column]:.1%}" for column in columns))
        console.print(table)
        console.print(
            f"{rates['calls']} calls, {rates['tokens']} tokens in {rates['steps']} steps: "
            f"[bold]MAT {rates['mean_accepted_tokens']:.2f}[/], "
            f"{rates['drafted_per_step']:.1f} drafted a step, "
            f"[bold]priced speedup {rates['priced_speedup']:.2f}[/], "
            f"{rates['microseconds_per_step']:.0f} µs a step",
            soft_wrap=True,  # so that a figure is found where it is looked for
        )
    console.print(where, style="dim", highlight=False, soft_wrap=True)
