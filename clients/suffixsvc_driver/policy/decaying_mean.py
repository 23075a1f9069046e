"""Weighted mean with exponential forgetting, for the statistics that the driver learns while it generates."""

from __future__ import annotations


class DecayingMean:
    """Weighted sum and weight of the observations.

    Both halve when the weight exceeds ``cap``, so that the mean follows a process that changes.

    Args:
        cap: weight above which both are halved.
    """

    __slots__ = ("_cap", "total", "weight")

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self.total = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add ``value`` to the sum and ``weight`` to the weight."""
        self.total += value
        self.weight += weight
        if self.weight > self._cap:
            self.total *= 0.5
            self.weight *= 0.5

    def mean(self, prior: float, prior_weight: float) -> float:
        """Mean of the observations and of a prior observation ``prior`` of weight ``prior_weight``."""
        return (self.total + prior_weight * prior) / (self.weight + prior_weight)
