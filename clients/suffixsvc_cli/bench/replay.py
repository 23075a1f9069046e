"""``suffixsvc bench replay``: drafting methods side by side on recorded logs."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import LogTokenizer, PageOfPlots

__all__ = ["bench_replay"]


class Start(enum.StrEnum):
    """State of the caches at the beginning of a log."""

    COLD = "cold"
    WARM = "warm"


def bench_replay(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Recorded logs (JSON lines, plain or .gz, one call per line), or directories of them."
        ),
    ] = None,
    tokenizer: LogTokenizer = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Method to run. Repeatable. Default: all that are installed, see --methods."),
    ] = None,
    methods: Annotated[bool, typer.Option("--methods", help="List the methods and exit.")] = False,
    cost: Annotated[
        list[float] | None,
        typer.Option(
            help="Cost of a drafted token, in plain decode steps. Repeatable. Default: 0.01 0.05 0.2.",
        ),
    ] = None,
    cost_curve: Annotated[
        Path | None,
        typer.Option(
            help="Also use a measured cost curve: a JSON list, entry w is the cost of a step of w tokens."
        ),
    ] = None,
    max_draft: Annotated[
        int | None,
        typer.Option("--max-draft", "-k", min=1, help="K for all methods. Default: each method's own."),
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
            help="Use only calls of this agent, or of the most-frequent one; LOG=NAME for one log. "
            "Repeatable."
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Maximum response tokens of each log; 0 = no limit.")
    ] = 0,
    max_calls: Annotated[int, typer.Option(min=0, help="Maximum calls of each log; 0 = no limit.")] = 0,
    prompt_tokens: Annotated[
        int, typer.Option(min=0, help="Use only this many tokens at the end of a prompt; 0 = all.")
    ] = 3000,
    train: Annotated[
        float, typer.Option(min=0, max=0.99, help="Share of each log that is the warm-up and not scored.")
    ] = 0.0,
    train_log: Annotated[
        list[Path] | None, typer.Option(help="Log that is part of the warm-up of every log. Repeatable.")
    ] = None,
    start: Annotated[
        Start,
        typer.Option(help="cold: every log starts with empty caches; warm: with those of the previous log."),
    ] = Start.COLD,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Replay the sessions of a log in random order (--seed).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of --shuffle.")] = 0,
    starting_weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Starting weights of our methods: a file of bench train, or its --leave-one-out folder.",
        ),
    ] = None,
    report: PageOfPlots = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare drafting methods on recorded logs, without running a model.

    Every call is replayed: each step drafts, accepts what agrees with the recorded answer and continues after
    it. Each log is a trace and starts with empty caches.

    The priced speedup is the number of tokens divided by the cost of the steps, 1 + cost x drafted tokens
    each. Our methods draft for the cost at which they are scored; the others have fixed configurations. MAT
    is tokens per step of the target (1 = no gain). docs/benchmarks.md explains every column.
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
