"""Recorded calls of a model, and hit rates of drafts when an engine double replays them.

A call is a prompt and the response that a model gave, in token ids. The engine doubles
(:mod:`support.vllm_model_runner`, :mod:`support.sglang_ngram_worker`, :mod:`support.trtllm_api_drafter`)
"generate" by emitting the recorded response, so that drafts can be verified without a model.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Call", "HitRates", "read_calls"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model, in token ids."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]

    def count_accepted(self, position: int, draft: Sequence[int]) -> int:
        """Length of the longest prefix of a draft that the model would accept after ``position`` response
        tokens. The last response token is never drafted: it is the model's own."""
        accepted = 0
        expected = self.response[position : len(self.response) - 1]
        for token, drafted in zip(expected, draft, strict=False):
            if token != drafted:
                break
            accepted += 1
        return accepted


@dataclass(slots=True)
class HitRates:
    """Counters of the drafts that were verified."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def count(self, drafted: int, accepted: int, ended: bool = False) -> None:
        """Count a step of one sequence: it emitted the accepted tokens and, unless it ``ended``, one more."""
        self.tokens += accepted + (not ended)
        self.steps += 1
        self.drafted += drafted
        self.accepted += accepted


def read_calls(path: Path) -> list[Call]:
    """Read the calls of a gzipped log in JSON lines; records without token ids are skipped."""
    with gzip.open(path) as lines:
        records = [json.loads(line) for line in lines]
    return [
        Call(tuple(record["prompt_token_ids"]), tuple(record["response_token_ids"]))
        for record in records
        if record.get("response_token_ids")
    ]
