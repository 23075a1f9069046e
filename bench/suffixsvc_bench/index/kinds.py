"""Kinds of synthetic text; :mod:`suffixsvc_bench.index.texts` describes and generates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PhraseMix:
    """Parameters of a stream; see the module that generates it."""

    new: float  #: probability that the next phrase is a new one
    replaced: float  #: probability that a token of a phrase is replaced


KINDS: Final[dict[str, PhraseMix | None]] = {
    "random": None,
    "realistic": PhraseMix(new=0.1, replaced=0.04),
    "repetitive": PhraseMix(new=0.005, replaced=0.01),
}
