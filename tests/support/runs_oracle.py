"""A brute-force oracle of published runs: all substrings, counted by principal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Run: TypeAlias = tuple[int, ...]


def substrings(text: Sequence[int], least: int) -> set[Run]:
    """All substrings of at least ``least`` tokens."""
    size = len(text)
    return {tuple(text[first:last]) for first in range(size) for last in range(first + least, size + 1)}


def shared_substrings(texts: Iterable[tuple[str, Sequence[int]]], principals: int, least: int) -> set[Run]:
    """The substrings that occur in texts of at least so many principals.

    Args:
        texts: (principal, tokens).
        principals: number of principals.
        least: minimum length.
    """
    writers: dict[Run, set[str]] = {}
    for principal, text in texts:
        for run in substrings(text, least):
            writers.setdefault(run, set()).add(principal)
    return {run for run, names in writers.items() if len(names) >= principals}


def maximal(runs: set[Run]) -> set[Run]:
    """Those that are not part of another one. ``runs`` must hold all parts of each."""
    return runs - {part for run in runs for part in (run[1:], run[:-1])}
