"""Tests with a long form: a sample in ``make test``, everything in ``make reliability FULL=1``.

The short form holds the same, of fewer rounds, examples or kill points; which ones is random where the test
is, so that many runs of it cover what the long form does in one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final, TypeVar

__all__ = ["FULL", "rounds", "sample"]

#: whether the long forms run
FULL: Final = os.environ.get("RELIABILITY_FULL", "0") not in ("", "0")

T = TypeVar("T")


def rounds(short: int, *, full: int) -> int:
    """The number of rounds, examples or the like."""
    return full if FULL else short


def sample(values: Sequence[T], short: int, rng: random.Random) -> list[T]:
    """All values in the long form; in the short one a random sample of so many, in the same order."""
    if FULL or len(values) <= short:
        return list(values)
    return [values[at] for at in sorted(rng.sample(range(len(values)), short))]
