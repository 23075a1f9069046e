"""Counts of things in words."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number of things, whose plural ends in "s": "1 output", "1,200 outputs"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
