"""``suffixsvc bench replay``: methods side by side on recorded logs."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc.cli.options import LogTokenizer, PageOfPlots

__all__ = ["bench_replay"]


class Start(enum.StrEnum):
    """What a log's caches know when it begins."""

    COLD = "cold"
    WARM = "warm"


def bench_replay(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Recorded logs (JSON lines, plain or .gz, a call a line), or directories of them."
        ),
    ] = None,
    tokenizer: LogTokenizer = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this method; can be repeated. Default: all that can run here, see --methods."
        ),
    ] = None,
    methods: Annotated[bool, typer.Option("--methods", help="List the methods and stop.")] = False,
    cost: Annotated[
        list[float] | None,
        typer.Option(
            help="What a drafted token costs, in plain decode steps. Repeatable; default 0.01 0.05 0.2.",
        ),
    ] = None,
    cost_curve: Annotated[
        Path | None,
        typer.Option(help="A measured curve as well: JSON, a list; entry w: a target step of w tokens."),
    ] = None,
    max_draft: Annotated[
        int | None,
        typer.Option("--max-draft", "-k", min=1, help="K for all methods. Default: each one's own."),
    ] = None,
    sweep: Annotated[
        bool | None,
        typer.Option(
            "--sweep/--no-sweep", help="Compare K = 4 8 16 24 32 48 at cost 0.05. On with --report."
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Only calls of this agent, or of the most-frequent one; LOG=NAME for one log. Repeatable."
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Stop after so many response tokens of each log; 0 = never.")
    ] = 0,
    max_calls: Annotated[
        int, typer.Option(min=0, help="Stop after so many calls of each log; 0 = never.")
    ] = 0,
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Use only the last so many tokens of a prompt; 0 = all.")
    ] = 3000,
    train: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of each log that only warms the caches, unscored.")
    ] = 0.0,
    train_log: Annotated[
        list[Path] | None, typer.Option(help="A log that warms the caches before every other. Repeatable.")
    ] = None,
    start: Annotated[
        Start,
        typer.Option(help="cold: every log starts with empty caches; warm: with those of the log before."),
    ] = Start.COLD,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Replay the sessions of a log in random order (--seed).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random: --shuffle.")] = 0,
    starting_weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="What ours starts from: a file of bench train, or its --leave-one-out folder.",
        ),
    ] = None,
    report: PageOfPlots = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Compare drafting methods on recorded logs, without running a model.

    Every call is replayed as if it were generated now: each step drafts, accepts what agrees with the
    recorded answer and goes on behind it. Each log is a trace of its own and starts with empty caches.

    The priced speedup is tokens over what the steps cost: 1 + cost x drafted tokens each. Our methods draft
    for the cost they are scored at; the others have fixed configurations. MAT is tokens per step of the
    target (1 = no gain). docs/benchmarks.md explains every column.
    """
    from suffixsvc_bench.replay.command import ReplayRequest, list_methods, run_bench_replay

    if methods:
        list_methods()
        return
    run_bench_replay(
        ReplayRequest(
            logs=logs or [],
            tokenizer=tokenizer,
            methods=method or [],
            costs=cost or [],
            cost_curve=cost_curve,
            k=max_draft,
            sweep=sweep,
            agents=agent or [],
            max_tokens=max_tokens,
            max_calls=max_calls,
            prompt_tokens=prompt_tokens,
            train=train,
            train_logs=train_log or [],
            warm=start is Start.WARM,
            shuffle=shuffle,
            seed=seed,
            starting_weights=starting_weights,
            report=report,
            as_json=as_json,
        )
    )
