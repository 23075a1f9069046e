"""Pairs of target and draft model, and what is known of them: what became of those that were tried."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["KnownPair", "find_known", "known_pairs"]


@dataclass(frozen=True, slots=True)
class KnownPair:
    """What became of pairs like this.

    Attributes:
        target, draft: regular expressions that names are searched for, case ignored.
        outcome: "works", "slower", "fails", or "not measured" where only facts about the pair are known.
        figures: what was seen, or is known.
        rule: the vocabulary rule that failed; "" = none.
    """

    target: str
    draft: str
    outcome: str
    figures: str
    rule: str = ""


@cache
def known_pairs() -> tuple[KnownPair, ...]:
    """All of them, the more particular ones first."""
    text = resources.files("suffixsvc_driver.models").joinpath("known_pairs.toml").read_text("utf-8")
    return tuple(KnownPair(**pair) for pair in tomllib.loads(text)["pairs"])


def find_known(target: str, draft: str) -> KnownPair | None:
    """The first pair that fits the names of two models."""
    fitting = (
        pair
        for pair in known_pairs()
        if re.search(pair.target, target, re.IGNORECASE) and re.search(pair.draft, draft, re.IGNORECASE)
    )
    return next(fitting, None)
