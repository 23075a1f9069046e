"""``suffixsvc replay``: hit rates of a recorded log in our engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suffixsvc_cli.base.options import LogTokenizer

if TYPE_CHECKING:
    from suffixsvc_bench.replay import Call, Replay, ReplayOptions


def replay(
    logs: Annotated[
        list[Path], typer.Argument(help="Recorded logs: JSON lines, plain or .gz, one call per line.")
    ],
    tokenizer: LogTokenizer = None,
    cost: Annotated[float, typer.Option(help="Cost of a drafted token, in plain decode steps.")] = 0.05,
    cost_curve: Annotated[
        Path | None,
        typer.Option(
            help='Measured cost curve instead: a JSON list or {"cost": list}; entry w: a step of w tokens.'
        ),
    ] = None,
    max_draft: Annotated[int, typer.Option(help="Maximum drafted tokens per step.")] = 64,
    tree: Annotated[bool, typer.Option("--tree/--chain", help="Draft trees instead of chains.")] = False,
    agent: Annotated[list[str] | None, typer.Option(help="Use only calls of this agent. Repeatable.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Maximum response tokens of each log; 0 = no limit.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure hit rates of the cache on recorded logs, without running a model.

    Each line of a log is a JSON object with "response_token_ids" and, optionally, "prompt_token_ids" (or
    "response" and "prompt" as texts, with --tokenizer), "agent" and "session_id".

    Every call is replayed: each step drafts, accepts what agrees with the recorded answer and continues after
    it. Each log starts with an empty cache.

    "prompt" is evidence in the call's own prompt and answer, "suffix" evidence in earlier answers. MAT is
    tokens per step of the target (1 = no gain); "speedup" is at --cost.

    suffixsvc bench replay compares with other methods and draws plots.
    """
    from suffixsvc_bench.replay import ReplayOptions
    from suffixsvc_bench.replay.inputs import encoder_of, read_curve
    from suffixsvc_bench.replay.traces import Selection, load_trace
    from suffixsvc_bench.report.provenance import provenance

    options = ReplayOptions(
        verify_cost=read_curve(cost_curve) if cost_curve else cost, max_draft_tokens=max_draft, tree=tree
    )
    encode = encoder_of(tokenizer) if tokenizer else None
    origin = provenance()
    results: dict[str, Replay] = {}
    for log in logs:
        trace = load_trace(log, encode, Selection(agents=tuple(agent or ()), max_tokens=max_tokens))
        results[str(log)] = _run(trace.calls, options, log.name)
    if as_json:
        report = {"provenance": origin.as_dict(), "cost": "curve" if cost_curve else cost, "tree": tree}
        typer.echo(json.dumps(report | {"logs": {name: r.rates() for name, r in results.items()}}, indent=2))
        return
    _print(results, origin.line())


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


def _print(results: dict[str, Replay], origin: str) -> None:
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
            f"{rates['drafted_per_step']:.1f} drafted per step, "
            f"[bold]priced speedup {rates['priced_speedup']:.2f}[/], "
            f"{rates['microseconds_per_step']:.0f} µs per step",
            soft_wrap=True,  # one line, for grep
        )
    console.print(origin, style="dim", highlight=False, soft_wrap=True)
