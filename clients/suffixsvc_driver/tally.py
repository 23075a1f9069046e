"""Means that forget, for the tables the driver learns while it generates."""

from __future__ import annotations

__all__ = ["Tally"]


class Tally:
    """Sum and weight of what was seen; both halve once the weight is above a cap, so that what changes is
    seen anew."""

    __slots__ = ("_cap", "total", "weight")

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self.total = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total += value
        self.weight += weight
        if self.weight > self._cap:
            self.total *= 0.5
            self.weight *= 0.5

    def mean(self, prior: float, prior_weight: float) -> float:
        """The mean, shrunk towards ``prior`` as if that had been seen with so much weight."""
        return (self.total + prior_weight * prior) / (self.weight + prior_weight)
