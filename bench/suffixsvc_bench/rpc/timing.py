"""Timing of single calls in rounds, each after a CPU-bound pause as in decoding."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Final

from suffixsvc_bench.rpc.subjects import Subject

__all__ = ["portions", "timed"]

_BLOCK: Final = bytes(1 << 16)


def timed(subject: Subject, calls: int, pause_s: float) -> list[float]:
    """Seconds of each call.

    Args:
        pause_s: CPU-bound pause before each call, seconds.
    """
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
    """Divide ``calls`` into ``rounds`` parts."""
    for i in range(rounds):
        yield calls * (i + 1) // rounds - calls * i // rounds
