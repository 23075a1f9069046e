"""A cost curve that goes on learning from real steps.

What was measured before the start holds for an idle machine. Another process, a warmer chip or a longer
context change what a wide step costs in plain ones, and so does what a machine does between two steps. Each
width keeps its last ratios and takes their median: a step that somebody else's work fell into changes
nothing, three in a row do.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import replace
from typing import Final

from suffixsvc_driver.curve import CostCurve

__all__ = ["LiveCurve"]

#: plain steps of which the median is what one takes now
_PLAIN: Final = 15
#: ratios kept of each width, and how many of these the first measurement counts for
_RATIOS: Final = 9
_MEASURED: Final = 5
#: a cost that moved by less is left as it is
_WORTH_CHANGING: Final = 0.03


class LiveCurve:
    """Shared between the generations of one target. Not thread-safe.

    Args:
        curve: measured before (see :mod:`suffixsvc_driver.cost`).

    Attributes:
        curve: as it is now.
        changes: how often a cost was corrected.
    """

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self.changes = 0
        self._plain: deque[float] = deque(maxlen=_PLAIN)
        self._unit = curve.seconds_per_step
        self._ratios: dict[int, deque[float]] = {}

    @property
    def seconds_per_step(self) -> float:
        """What a plain step takes now; 0 while nobody knows."""
        return self._unit

    def observe(self, width: int, seconds: float) -> None:
        """A step of ``width`` tokens, the newest one and those computed again included, took so long;
        0 seconds is no measurement, and so is a width that the curve does not know."""
        if not 0.0 < seconds < float("inf") or not 1 <= width <= self.curve.max_width:
            return
        if width == 1:
            self._plain.append(seconds)
            if len(self._plain) >= _MEASURED:
                self._unit = statistics.median(self._plain)
                known_unit = self.curve.seconds_per_step
                if abs(self._unit - known_unit) > _WORTH_CHANGING * known_unit:
                    # what questions cost in plain steps depends on it
                    self.curve = replace(self.curve, seconds_per_step=self._unit)
            return
        if self._unit <= 0.0:
            return
        known = self.curve.costs[width]
        ratios = self._ratios.setdefault(width, deque([known] * _MEASURED, maxlen=_RATIOS))
        ratios.append(seconds / self._unit)
        now = statistics.median(ratios)
        if abs(now - known) > _WORTH_CHANGING * known:
            self.curve = self.curve.with_cost(width, now)
            self.changes += 1
