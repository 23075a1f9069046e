"""Options of ``suffixsvc bench replay``."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.verb_options import argument, option

#: help of the option --tokenizer of verbs that read logs
LOG_TOKENIZER: Final = (
    "Tokenizer for logs of texts: the model's GGUF or name, or a tokenizer.json (plain or .gz)."
)


class Start(enum.StrEnum):
    """State of the caches at the beginning of a log."""

    COLD = "cold"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The options of the verb."""

    logs: tuple[Path, ...] = argument(
        (), help="Recorded logs (JSON lines, plain or .gz, one call per line), or directories of them."
    )
    tokenizer: Path | None = option(None, help=LOG_TOKENIZER)
    methods: tuple[str, ...] = option(
        (), "--method", help="Method to run. Repeatable. Default: all that are installed, see --methods."
    )
    costs: tuple[float, ...] = option(
        (),
        "--cost",
        help="Cost of a drafted token, in plain decode steps. Repeatable. Default: 0.01 0.05 0.2.",
    )
    cost_curve: Path | None = option(
        None, help="Also use a measured cost curve: a JSON list, entry w is the cost of a step of w tokens."
    )
    k: int | None = option(
        None, "--max-draft", "-k", min=1, help="K for all methods. Default: each method's own."
    )
    sweep: bool | None = option(
        None, "--sweep/--no-sweep", help="Compare K = 4 8 16 24 32 48 at cost 0.05. On with --report."
    )
    agents: tuple[str, ...] = option(
        (),
        "--agent",
        help="Use only calls of this agent, or of the most-frequent one; LOG=NAME for one log. Repeatable.",
    )
    max_tokens: int = option(0, min=0, help="Maximum response tokens of each log; 0 = no limit.")
    max_calls: int = option(0, min=0, help="Maximum calls of each log; 0 = no limit.")
    prompt_tokens: int = option(
        3000, min=0, help="Use only this many tokens at the end of a prompt; 0 = all."
    )
    train: float = option(0.0, min=0, max=0.99, help="Share of each log that is the warm-up and not scored.")
    train_logs: tuple[Path, ...] = option(
        (), "--train-log", help="Log that is part of the warm-up of every log. Repeatable."
    )
    start: Start = option(
        Start.COLD,
        help="cold: every log starts with empty caches; warm: with those of the previous log.",
    )
    shuffle: bool = option(False, "--shuffle", help="Replay the sessions of a log in random order (--seed).")
    seed: int = option(0, help="Seed of --shuffle.")
    starting_weights: Path | None = option(
        None,
        metavar="PATH",
        help="Starting weights of our methods: a file of bench train, or its --leave-one-out folder.",
    )
    report: Path | None = option(None, metavar="FILE", help="Write a self-contained HTML page with plots.")
    as_json: bool = option(False, "--json", help="Print JSON.")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data from which the run can be reproduced."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain | {"warm": plain.pop("start") == Start.WARM}
