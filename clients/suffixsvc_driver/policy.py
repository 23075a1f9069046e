"""Which prefix of a draft to verify: pure arithmetic.

Expected gain: a step that sends n drafted tokens writes 1 + sum P(path) tokens and costs c[1 + n]. With
lambda tokens gained per unit cost so far, the n that maximises sum P(path) - lambda * c[1 + n] maximises
tokens per second in the long run (renewal-reward). Whole prefixes are compared, never token by token: a
curve with steps would stall a greedy rule right before its cheap width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve

__all__ = ["AdaptiveK", "Choice", "RunningRate", "best_ask", "best_prefix"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A prefix of ``length`` tokens in a batch of ``width``, and what it gains over drafting nothing,
    in tokens. Length 0 is a plain step."""

    length: int = 0
    width: int = 1
    gain: float = 0.0


def best_prefix(probs: Sequence[float], curve: CostCurve, rate: float, limit: int, room: int) -> Choice:
    """The prefix that gains most.

    Args:
        probs: P(accepted | all before accepted) of each token.
        rate: lambda, tokens per unit cost.
        limit: drafted tokens that may be useful at most.
        room: the widest batch the context has room for.
    """
    best = Choice()
    path, expected = 1.0, 0.0
    widest = min(curve.max_width, room)
    for length in range(1, min(len(probs), limit, widest - 1) + 1):
        path *= probs[length - 1]
        expected += path
        width = curve.padded_width(length + 1, widest)
        gain = expected - rate * (curve.costs[width] - 1.0)
        if gain > best.gain:
            best = Choice(length, width, gain)
    return best


def best_ask(
    acceptance: float,
    curve: CostCurve,
    rate: float,
    limit: int,
    room: int,
    *,
    cost_per_ask: float = 0.0,
    cost_per_token: float = 0.0,
) -> Choice:
    """The number of tokens to ask a layer for, were each accepted with this probability, and the gain
    after paying for the question. At acceptance 1 this is the best the layer could ever do."""
    best = Choice()
    path, expected = 1.0, 0.0
    widest = min(curve.max_width, room)
    for length in range(1, min(limit, widest - 1) + 1):
        path *= acceptance
        expected += path
        width = curve.padded_width(length + 1, widest)
        gain = expected - rate * (curve.costs[width] - 1.0 + cost_per_ask + cost_per_token * length)
        if gain > best.gain:
            best = Choice(length, width, gain)
    return best


class RunningRate:
    """lambda: tokens per unit cost so far, old steps decayed. Never below 1, which plain decoding gives:
    a run of bad luck must not make bad drafts look worth their price."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._tokens = 1.0
        self._cost = 1.0

    @property
    def value(self) -> float:
        return max(1.0, self._tokens / self._cost) if self._cost > 0.0 else 1.0

    def add(self, tokens: int, cost: float) -> None:
        self._tokens = self._tokens * self._decay + tokens
        self._cost = self._cost * self._decay + cost


class AdaptiveK:
    """first-match: how many tokens to draft, raised and lowered by acceptance over a rolling window."""

    #: looking again after every step would race K to an end before the window has moved
    _REVIEW_EVERY = 16

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._window: deque[tuple[int, int]] = deque(maxlen=config.k_window_steps)
        self._since_review = 0
        self.value = config.k_start

    def add(self, drafted: int, accepted: int) -> None:
        """A step that sent a draft."""
        self._window.append((drafted, accepted))
        self._since_review += 1
        if self._since_review < self._REVIEW_EVERY:
            return
        self._since_review = 0
        rate = sum(a for _, a in self._window) / sum(d for d, _ in self._window)
        if rate > self._config.k_raise_above:
            self.value = min(self._config.k_max, self.value + self._config.k_step)
        elif rate < self._config.k_lower_below:
            self.value = max(self._config.k_min, self.value - self._config.k_step)
