"""Calibration of draft probabilities: predicted against observed acceptance of every drafted node."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

__all__ = ["Calibration", "Reliability", "ReliabilityBin", "pooled", "reliability"]

BINS: Final = 20


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Nodes of similar predicted probability."""

    predicted: float  #: mean path probability
    observed: float  #: share that was accepted
    count: int


@dataclass(frozen=True, slots=True)
class Reliability:
    """A reliability diagram with two summary measures.

    Attributes:
        bins: by ascending probability, of equal mass up to ties.
        ece: expected calibration error, the mean of |predicted - observed| over all nodes.
        largest_gap: the largest |predicted - observed| of a bin.
    """

    bins: tuple[ReliabilityBin, ...]
    ece: float
    largest_gap: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {
            "ece": self.ece,
            "largest_bin_gap": self.largest_gap,
            "bins": [[b.predicted, b.observed, b.count] for b in self.bins],
        }


def reliability(predicted: Any, accepted: Any, bins: int = BINS) -> Reliability | None:
    """Group nodes into equal-mass bins of predicted probability; equal probabilities share a bin.

    Args:
        predicted: float[n] path probabilities.
        accepted: bool[n].
        bins: number of bins.

    Returns:
        None without nodes.
    """
    p = np.asarray(predicted, np.float64)
    hit = np.asarray(accepted, np.float64)
    if not len(p):
        return None
    order = np.argsort(p, kind="stable")
    p, hit = p[order], hit[order]
    wanted = np.linspace(0, len(p), bins + 1)[1:-1].round().astype(np.int64)
    # a cut inside a run of equal probabilities moves to the run's start
    cuts = np.unique(np.searchsorted(p, p[np.minimum(wanted, len(p) - 1)], side="left"))
    edges = [0, *[int(c) for c in cuts if 0 < c < len(p)], len(p)]
    made = tuple(
        ReliabilityBin(float(p[a:b].mean()), float(hit[a:b].mean()), b - a) for a, b in pairwise(edges)
    )
    gaps = [abs(b.predicted - b.observed) for b in made]
    ece = sum(gap * b.count for gap, b in zip(gaps, made, strict=True)) / len(p)
    return Reliability(made, ece, max(gaps))


def pooled(bins: Sequence[ReliabilityBin], count: int = BINS) -> list[tuple[float, float]]:
    """Merge the bins of several replays into about ``count`` of similar mass: (predicted, observed),
    ascending.
    """
    ordered = sorted(bins, key=lambda b: b.predicted)
    mass = sum(b.count for b in ordered) / count
    points: list[tuple[float, float]] = []
    predicted = observed = filled = 0.0
    for number, one in enumerate(ordered, 1):
        predicted += one.predicted * one.count
        observed += one.observed * one.count
        filled += one.count
        # slightly less than the mass: bins of one replay have it up to one node
        if filled >= 0.9 * mass or number == len(ordered):
            points.append((predicted / filled, observed / filled))
            predicted = observed = filled = 0.0
    return points


class Calibration:
    """Path probability and outcome of every drafted node of a replay: 5 bytes per node."""

    def __init__(self) -> None:
        self._predicted = array("f")
        self._accepted = bytearray()

    def add(self, parents: list[int], probs: list[float], path: list[int]) -> None:
        """Add a draft's nodes; ``path`` are the accepted ones. Drafts without probabilities are skipped."""
        if not probs or probs[0] != probs[0]:
            return
        whole: list[float] = []
        for parent, p in zip(parents, probs, strict=True):
            whole.append(p if parent < 0 else whole[parent] * p)
        outcome = bytearray(len(whole))
        for node in path:
            outcome[node] = 1
        self._predicted.extend(whole)
        self._accepted += outcome

    def __len__(self) -> int:
        return len(self._accepted)

    def reliability(self) -> Reliability | None:
        """The reliability diagram; None without nodes."""
        return reliability(
            np.frombuffer(self._predicted, np.float32), np.frombuffer(bytes(self._accepted), np.uint8)
        )
