"""A recorded log instead of a model, and what is counted when its calls are written again."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError

__all__ = ["Call", "HitRates", "calls_from_arguments", "read_calls"]

#: in a checkout; of an installed package it is not a part
_LOG: Final = Path(__file__).resolve().parents[4] / "tests" / "data" / "recorded_demo.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Call:
    """What a model was given and what it wrote, in token ids."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]

    def agrees_with(self, position: int, draft: Sequence[int]) -> int:
        """How many tokens of a draft the model would have written behind ``position`` tokens of its response;
        at least one token of the response is left for its own choice."""
        accepted = 0
        ahead = self.response[position : len(self.response) - 1]
        for right, drafted in zip(ahead, draft, strict=False):
            if right != drafted:
                break
            accepted += 1
        return accepted


@dataclass(slots=True)
class HitRates:
    """What came of the drafts."""

    tokens: int = 0
    steps: int = 0
    steps_with_draft: int = 0
    steps_with_hit: int = 0
    drafted: int = 0
    accepted: int = 0

    def count(self, drafted: int, accepted: int, ended: bool = False) -> None:
        """One step of one sequence. It wrote one token more than it accepted, or ``ended`` with those."""
        self.tokens += accepted + (not ended)
        self.steps += 1
        self.steps_with_draft += drafted > 0
        self.steps_with_hit += accepted > 0
        self.drafted += drafted
        self.accepted += accepted

    def __str__(self) -> str:
        steps, tokens = max(1, self.steps), max(1, self.tokens)
        return (
            f"{self.tokens} tokens in {self.steps} steps, {self.tokens / steps:.2f} a step; "
            f"{self.steps_with_draft / steps:.0%} of them with a draft, {self.steps_with_hit / steps:.0%} "
            f"with a hit; {self.drafted} tokens drafted, {self.accepted} accepted, "
            f"{self.accepted / tokens:.0%} of the output"
        )


def read_calls(path: Path) -> list[Call]:
    """The calls of a log of ours (JSON lines, plain or .gz), those without token ids left out.

    Raises:
        InvalidInputError: there is no such file, or it holds no call with token ids.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            records = [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"cannot read the log {path}",
            expected="JSON lines with prompt_token_ids and response_token_ids",
            got=str(error)[:200],
            remedy="Name one with --log; a checkout has tests/data/recorded_demo.jsonl.gz.",
        ) from None
    calls = [
        Call(tuple(record["prompt_token_ids"]), tuple(record["response_token_ids"]))
        for record in records
        if record.get("response_token_ids")
    ]
    if not calls:
        raise InvalidInputError(f"no call in the log {path} has token ids", got=f"{len(records)} records")
    return calls


def calls_from_arguments(what: str) -> list[Call]:
    """The calls of ``--log``, or of the project's own one."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--log", type=Path, default=_LOG, help="JSON lines of recorded calls (default: ours)")
    path: Path = parser.parse_args().log
    try:
        calls = read_calls(path)
    except InvalidInputError as error:
        parser.error(str(error))
    print(what)
    print(f"{len(calls)} calls from {path.name}; no model runs: the log says what it wrote\n")
    return calls
