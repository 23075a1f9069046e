"""Options of ``suffixsvc bench train``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffixsvc.verb_options import argument, option
from suffixsvc_bench.replay.options import LOG_TOKENIZER


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of the verb."""

    logs: tuple[Path, ...] = argument(help="Recorded logs, or directories of them.")
    out: Path = option(help="File to write; with --leave-one-out a folder.")
    tokenizer: Path | None = option(None, help=LOG_TOKENIZER)
    leave_one_out: bool = option(
        False,
        "--leave-one-out",
        help="Write one file for every log, learned on all others, for bench replay --starting-weights "
        "FOLDER.",
    )
    max_tokens: int = option(20_000, min=0, help="Maximum response tokens of each log; 0 = no limit.")
    seed: int = option(0, help="Seed of the order of the logs.")
