"""What a target step costs, by how many tokens it verifies.

A curve is relative: ``costs[1] == 1`` is a plain decode step. It need not rise: on small machines a
batch of 16 can be cheaper than one of 12, so a step may be padded up to a cheaper width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidCostError

__all__ = ["CostCurve"]

#: of a curve that is guessed: what each further token costs, and how wide a step is believed to pay
_GUESSED_COST_PER_TOKEN: Final = 0.2
_GUESSED_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Relative cost of a target step of w tokens, the last real one included.

    Attributes:
        costs: ``costs[w]`` for w = 1 .. max_width, in plain decode steps; ``costs[0]`` is unused (0),
            ``costs[1]`` is 1.
        seconds_per_step: what a plain decode step takes, 0 where nobody measured it.

    Raises:
        InvalidCostError: an empty curve, a value that is NaN, infinite or negative, costs[1] != 1.
    """

    costs: tuple[float, ...]
    seconds_per_step: float = 0.0
    _padded: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _widest_paying: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.costs) < 2:
            raise InvalidCostError(
                "a cost curve holds at least the width 1",
                expected="costs[0] (unused) and costs[1] = 1",
                got=f"{len(self.costs)} values",
            )
        costs = tuple(float(c) for c in self.costs)
        for width, cost in enumerate(costs[1:], start=1):
            if not math.isfinite(cost) or cost < 0:
                raise InvalidCostError(
                    f"the cost of width {width} makes no sense", expected="a finite number >= 0", got=cost
                )
        if abs(costs[1] - 1.0) > 1e-9:
            raise InvalidCostError(
                "a cost curve is relative to a plain step",
                expected="costs[1] = 1",
                got=costs[1],
                remedy="Divide every value by costs[1].",
            )
        if not math.isfinite(self.seconds_per_step) or self.seconds_per_step < 0:
            raise InvalidCostError(
                "seconds per step make no sense", expected="a finite number >= 0", got=self.seconds_per_step
            )
        object.__setattr__(self, "costs", (0.0, *costs[1:]))
        padded = list(range(len(costs)))
        for width in range(len(costs) - 2, 1, -1):
            wider = padded[width + 1]
            if costs[wider] < costs[width]:
                padded[width] = wider
        object.__setattr__(self, "_padded", tuple(padded))
        paying = (width for width, cost in enumerate(costs) if width > max(1, cost))
        object.__setattr__(self, "_widest_paying", max(paying, default=1))

    @classmethod
    def linear(cls, per_token: float, max_width: int, *, seconds_per_step: float = 0.0) -> CostCurve:
        """Each further token costs ``per_token`` plain steps."""
        if max_width < 1:
            raise InvalidCostError("a curve has a width", expected="max_width >= 1", got=max_width)
        return cls((0.0, *(1.0 + per_token * (w - 1) for w in range(1, max_width + 1))), seconds_per_step)

    @classmethod
    def guessed(
        cls, max_width: int, per_token: float | None = None, *, seconds_per_step: float = 0.0
    ) -> CostCurve:
        """For targets that nobody measured.

        Args:
            per_token: what a further token costs, in plain steps; None: as on a mid-sized model on a machine
                with some width to spare.
        """
        width = max(1, min(_GUESSED_WIDTH, max_width))
        each = _GUESSED_COST_PER_TOKEN if per_token is None else per_token
        return cls.linear(each, width, seconds_per_step=seconds_per_step)

    @classmethod
    def from_samples(cls, samples: Mapping[int, float], *, seconds_per_step: float = 0.0) -> CostCurve:
        """A curve from some measured widths. A width between two measured ones takes the dearer of
        both, so that a step nobody measured never looks like a bargain."""
        widths = sorted(samples)
        if not widths or widths[0] != 1:
            raise InvalidCostError("width 1 was not measured", expected="a sample of width 1", got=widths[:4])
        costs = [0.0] * (widths[-1] + 1)
        for low, high in itertools.pairwise(widths):
            for width in range(low + 1, high):
                costs[width] = max(samples[low], samples[high])
        for width in widths:
            costs[width] = samples[width]
        return cls(tuple(costs), seconds_per_step)

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> CostCurve:
        """A curve from what a step of each width takes; ``seconds[0]`` is unused.

        Raises:
            InvalidCostError: no width, a value that is NaN, infinite or negative, a plain step of no time.
        """
        plain = float(seconds[1]) if len(seconds) > 1 else 0.0
        if not 0.0 < plain < math.inf:
            raise InvalidCostError(
                "seconds of a plain step make no sense", expected="a finite number > 0", got=plain
            )
        return cls((0.0, 1.0, *(float(each) / plain for each in seconds[2:])), plain)

    @property
    def max_width(self) -> int:
        """The widest step the curve knows."""
        return len(self.costs) - 1

    @property
    def widest_paying(self) -> int:
        """The widest step that is cheaper than as many plain ones: no wider one pays, even if every token
        were accepted. 1 where none is."""
        return self._widest_paying

    def cost(self, width: int) -> float:
        """Of a step of ``width`` tokens; past the curve's end its last step goes on by the mean slope."""
        known = self.max_width
        return self.costs[width] if width <= known else self.costs[known] * width / known

    @property
    def seconds(self) -> tuple[float, ...]:
        """What a step of each width takes; entry 0 is unused, and all are 0 where nobody measured."""
        return tuple(cost * self.seconds_per_step for cost in self.costs)

    def padded_width(self, width: int, room: int) -> int:
        """The cheapest width that holds ``width`` tokens and is at most ``room``. Width 1 stays 1: a
        plain step is never padded."""
        best = self._padded[width]
        if best <= room:
            return best
        return min(range(width, room + 1), key=self.costs.__getitem__, default=width)

    def effective(self) -> npt.NDArray[np.float32]:
        """float32[max_width + 1]: the curve with padding taken into account, as drafting layers want it."""
        return np.array([self.costs[self._padded[w]] for w in range(len(self.costs))], dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` reads it back."""
        return {"costs": list(self.costs), "seconds_per_step": self.seconds_per_step}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostCurve:
        """Raises InvalidCostError for anything that :meth:`to_json` did not write."""
        costs, seconds = data.get("costs"), data.get("seconds_per_step", 0.0)
        if not _numbers(costs) or not _numbers([seconds]):
            raise InvalidCostError("not a cost curve", expected="a list of numbers", got=repr(costs)[:80])
        return cls(tuple(float(c) for c in costs or ()), float(seconds))


def _numbers(values: Iterable[Any] | Sequence[Any] | None) -> bool:
    return isinstance(values, list) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
    )
