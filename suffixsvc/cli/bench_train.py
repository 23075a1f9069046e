"""``suffixsvc bench train``: starting weights from recorded logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suffixsvc.cli.options import LogTokenizer

__all__ = ["bench_train"]


def bench_train(
    logs: Annotated[list[Path], typer.Argument(help="Recorded logs, or directories of them.")],
    out: Annotated[Path, typer.Option(help="The file to write; with --leave-one-out the folder.")],
    tokenizer: LogTokenizer = None,
    leave_one_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-out",
            help="One file for every log, learned on all the others: bench replay --starting-weights FOLDER.",
        ),
    ] = False,
    max_tokens: Annotated[
        int, typer.Option(min=0, help="Use only so many response tokens of each log; 0 = all.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="Of the order in which the logs are learned from.")] = 0,
) -> None:
    """Learn what a namespace that has seen nothing starts drafting with.

    The file holds counters and mixer weights, no text, nothing that depends on a tokenizer. Hand it to
    SuffixCache(starting_weights=...); the one that is shipped was made in the same way.
    """
    from suffixsvc_bench.train_command import run_bench_train

    run_bench_train(logs, out, tokenizer, leave_one_out=leave_one_out, max_tokens=max_tokens, seed=seed)
