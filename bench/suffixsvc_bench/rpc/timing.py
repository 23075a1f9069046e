"""Timing of single calls in rounds, each after a CPU-bound pause as in decoding."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from suffixsvc_bench.rpc.subjects import Subject

_BLOCK: Final = bytes(1 << 16)


def alternating(
    subjects: Sequence[Subject],
    calls: int,
    rounds: int,
    pause_s: float,
    warm_calls: int,
    notify: Callable[[int], None] = lambda _: None,
) -> list[list[float]]:
    """Seconds of each call of each subject, in alternating rounds.

    Args:
        pause_s: CPU-bound pause before each call, seconds.
        warm_calls: untimed calls before them.
        notify: called after each round with the number of calls of a subject so far.
    """
    seconds: list[list[float]] = [[] for _ in subjects]
    for subject in subjects:
        _timed(subject, min(warm_calls, calls), pause_s)
    for portion in portions(calls, rounds):
        for subject, taken in zip(subjects, seconds, strict=True):
            taken.extend(_timed(subject, portion, pause_s))
        notify(len(seconds[0]))
    return seconds


def _timed(subject: Subject, calls: int, pause_s: float) -> list[float]:
    seconds = []
    for _ in range(calls):
        subject.prepare()
        _decode(pause_s)
        before = time.perf_counter()
        subject.call()
        seconds.append(time.perf_counter() - before)
    return seconds


def _decode(seconds: float) -> None:
    """Keep a core busy outside the interpreter, as a model does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        hashlib.sha256(_BLOCK).digest()  # releases the GIL


def portions(calls: int, rounds: int) -> Iterator[int]:
    """Divide ``calls`` into ``rounds`` parts, or one part per call if they are fewer."""
    rounds = min(rounds, calls)
    for i in range(rounds):
        yield calls * (i + 1) // rounds - calls * i // rounds
