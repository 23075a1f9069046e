"""When drafting for several sessions in one batch pays, by what such batches cost here.

w sessions one after another finish after 1, 2, .. w steps: on average after (w + 1) / 2. Together they all
finish after c(w), the cost of a batch of w. So a batch pays its drivers only where c(w) < (w + 1) / 2, which
a GPU grants easily and two CPU cores hardly ever: there a batch of 2 costs as much as two steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["MANY_TOKENS", "BatchCosts"]

#: so many at once tell what reading a token takes
MANY_TOKENS: Final = 16
#: weight of the newest measurement
_STEP: Final = 0.1


class BatchCosts:
    """What the draft model's batches take, measured at the start and refreshed by real ones.

    Args:
        step_seconds: seconds of one token of each of w sessions, by w; must hold 1.
        read_seconds: seconds a token of the context takes, read in chunks.
        max_width: sessions computed together: 0 lets the costs decide, a number sets it.
    """

    def __init__(self, step_seconds: Mapping[int, float], read_seconds: float, max_width: int = 0) -> None:
        self._step = dict(sorted(step_seconds.items()))
        self._read = read_seconds
        self._max_width = max_width

    @property
    def seconds_per_token(self) -> float:
        """Of one session alone."""
        return self._step[1]

    @property
    def lanes(self) -> int:
        """Sessions that draft side by side at most."""
        return self.width_for(self._max_width or max(self._step))

    def width_for(self, ready: int) -> int:
        """How many of so many sessions, each waiting for its next token, to compute together."""
        if self._max_width:
            return min(ready, self._max_width)
        return max(w for w in range(1, ready + 1) if w == 1 or self._pays(w))

    def step_seconds(self, width: int) -> float:
        """Expected of one token for each of ``width`` sessions: between two measured widths on a line."""
        below = max(w for w in self._step if w <= width)
        above = min((w for w in self._step if w >= width), default=below)
        if above == below:
            return self._step[below] * width / below
        share = (width - below) / (above - below)
        return self._step[below] + share * (self._step[above] - self._step[below])

    def read_seconds(self, tokens: int) -> float:
        """Expected of reading so many tokens of context."""
        return self._read * tokens

    def learn_step(self, width: int, seconds: float) -> None:
        """A batch of ``width`` sessions took so long."""
        if width in self._step:
            self._step[width] += _STEP * (seconds - self._step[width])

    def learn_read(self, tokens: int, seconds: float) -> None:
        """Reading so many tokens took so long. A few of them take a pass, as a drafted one does, and tell
        nothing of what each of many takes."""
        if tokens < MANY_TOKENS:
            return
        self._read += _STEP * (seconds / tokens - self._read)

    def _pays(self, width: int) -> bool:
        return self.step_seconds(width) < self._step[1] * (width + 1) / 2
