"""Measured costs of batches, and the batch width that pays.

w sessions one after another finish after 1, 2, .. w steps, on average after (w + 1) / 2. In one batch they
all finish after c(w), the cost of a batch of w. A batch pays only if c(w) < (w + 1) / 2, which is usual on a
GPU and rare on two CPU cores, where a batch of 2 costs as much as two steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: smallest prefill from which the time per token is measured
MANY_TOKENS: Final = 16
#: weight of the newest measurement
_WEIGHT: Final = 0.1


class BatchCosts:
    """Costs of the draft model's batches, measured at the start and updated by real ones.

    Args:
        step_seconds: width w -> seconds of a batch with one token of each of w sessions; must contain 1.
        prefill_seconds: seconds per context token, computed in chunks.
        max_width: batch width; 0 = the width that pays by the costs.
    """

    def __init__(self, step_seconds: Mapping[int, float], prefill_seconds: float, max_width: int = 0) -> None:
        self._step = dict(sorted(step_seconds.items()))
        self._prefill = prefill_seconds
        self._max_width = max_width

    @property
    def seconds_per_token(self) -> float:
        """Seconds per token of one session alone."""
        return self._step[1]

    @property
    def lanes(self) -> int:
        """Largest number of sessions that draft concurrently."""
        return self.width_for(self._max_width or max(self._step))

    def width_for(self, ready: int) -> int:
        """Return the batch width for ``ready`` sessions that each wait for their next token."""
        if self._max_width:
            return min(ready, self._max_width)
        return max(w for w in range(1, ready + 1) if w == 1 or self._pays(w))

    def step_seconds(self, width: int) -> float:
        """Return the expected seconds of a batch, interpolated linearly between measured widths."""
        below = max(w for w in self._step if w <= width)
        above = min((w for w in self._step if w >= width), default=below)
        if above == below:
            return self._step[below] * width / below
        share = (width - below) / (above - below)
        return self._step[below] + share * (self._step[above] - self._step[below])

    def prefill_seconds(self, tokens: int) -> float:
        """Return the expected seconds of computing context tokens."""
        return self._prefill * tokens

    def record_step(self, width: int, seconds: float) -> None:
        """Record the time of a batch of ``width`` sessions."""
        if width in self._step:
            self._step[width] += _WEIGHT * (seconds - self._step[width])

    def record_prefill(self, tokens: int, seconds: float) -> None:
        """Record the time of a prefill. Short ones are ignored: they take as long as a drafted token."""
        if tokens < MANY_TOKENS:
            return
        self._prefill += _WEIGHT * (seconds / tokens - self._prefill)

    def _pays(self, width: int) -> bool:
        return self.step_seconds(width) < self._step[1] * (width + 1) / 2
