"""``suffixsvc bench train``: starting weights from recorded logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import LogTokenizer

__all__ = ["bench_train"]


def bench_train(
    logs: Annotated[list[Path], typer.Argument(help="Recorded logs, or directories of them.")],
    out: Annotated[Path, typer.Option(help="File to write; with --leave-one-out a folder.")],
    tokenizer: LogTokenizer = None,
    leave_one_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-out",
            help="Write one file for every log, learned on all others, for bench replay --starting-weights "
            "FOLDER.",
        ),
    ] = False,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Maximum response tokens of each log; 0 = no limit.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the order of the logs.")] = 0,
) -> None:
    """Learn the starting weights of new namespaces.

    The file has counters and mixer weights, no text, and does not depend on a tokenizer. Pass it to
    SuffixCache(starting_weights=...); the shipped weights were made in the same way.
    """
    from suffixsvc_bench.training.command import run_bench_train

    run_bench_train(logs, out, tokenizer, leave_one_out=leave_one_out, max_tokens=max_tokens, seed=seed)
