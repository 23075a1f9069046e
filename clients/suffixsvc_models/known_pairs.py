"""Known results of pairs of target and draft models."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A known result of a kind of pair.

    Attributes:
        target, draft: regular expressions that are searched in the models' names, ignoring case.
        outcome: "works", "slower", "fails", or "not measured" if only facts about the pair are known.
        figures: measurements or facts.
        rule: the vocabulary rule that failed; "" = none.
    """

    target: str
    draft: str
    outcome: str
    figures: str
    rule: str = ""


@cache
def known_pairs() -> tuple[KnownPair, ...]:
    """Return all known pairs, more specific ones first."""
    text = resources.files("suffixsvc_models").joinpath("known_pairs.toml").read_text("utf-8")
    return tuple(KnownPair(**pair) for pair in tomllib.loads(text)["pairs"])


def find_known(target: str, draft: str) -> KnownPair | None:
    """Return the first known pair that matches the names of two models."""
    fitting = (
        pair
        for pair in known_pairs()
        if re.search(pair.target, target, re.IGNORECASE) and re.search(pair.draft, draft, re.IGNORECASE)
    )
    return next(fitting, None)
