"""Questions of the demo (prompts.toml): passes of different questions of the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from suffixsvc_bench.demo.agents import PROMPTS


@dataclass(frozen=True, slots=True)
class Question:
    """One question; ``key`` names its session, e.g. "p1-q3"."""

    key: str
    text: str


def _of_pass(name: str) -> tuple[Question, ...]:
    return tuple(Question(f"{name}-q{i}", text) for i, text in enumerate(PROMPTS["questions"][name], 1))


FIRST_PASS: Final = _of_pass("p1")
SECOND_PASS: Final = _of_pass("p2")
(AFTER_RESTART,) = _of_pass("p3")
(FIRST_MATCH,) = _of_pass("p4")
_one, _other = _of_pass("live")
LIVE: Final = (_one, _other)
THIRD_PASS: Final = _of_pass("p5")
