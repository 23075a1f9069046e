"""Cost curve of a target: the cost of a step by the number of tokens it verifies.

Costs are relative: ``costs[1] == 1`` is a plain decode step. A curve need not be monotonic: on small machines
a batch of 16 tokens can be cheaper than one of 12, so a step may be padded to a cheaper width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidCostError

if TYPE_CHECKING:
    from suffixsvc.core import StepCosts

#: of a guessed curve: cost of each token after the first, plain steps, and its largest width
_GUESSED_COST_PER_TOKEN: Final = 0.2
_GUESSED_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Relative cost of a target step of w tokens, the newest emitted token included.

    Attributes:
        costs: ``costs[w]`` for w = 1 .. max_width, in plain decode steps; ``costs[0]`` is unused (0),
            ``costs[1]`` is 1.
        seconds_per_step: of a plain decode step; 0 if not measured.
        max_width: largest width of the curve.
        widest_paying: largest width that is cheaper than as many plain steps, or 1. No wider step gains, even
            if every drafted token is accepted.
        padded: cheapest width from w on, for w = 0 .. max_width; a plain step is never padded.

    Raises:
        InvalidCostError: an empty curve, a value that is NaN, infinite or negative, or costs[1] != 1.
    """

    costs: tuple[float, ...]
    seconds_per_step: float = 0.0
    max_width: int = field(init=False, repr=False, compare=False)
    widest_paying: int = field(init=False, repr=False, compare=False)
    padded: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _native: StepCosts | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if len(self.costs) < 2:
            raise InvalidCostError(
                "costs must hold costs[0] (unused) and costs[1] = 1", got=f"{len(self.costs)} values"
            )
        costs = tuple(float(c) for c in self.costs)
        for width, cost in enumerate(costs[1:], start=1):
            if not math.isfinite(cost) or cost < 0:
                raise InvalidCostError(f"costs[{width}] must be a finite number >= 0", got=cost)
        if abs(costs[1] - 1.0) > 1e-9:
            raise InvalidCostError(
                "costs[1] must be 1", got=costs[1], remedy="Divide every value by costs[1]."
            )
        if not math.isfinite(self.seconds_per_step) or self.seconds_per_step < 0:
            raise InvalidCostError("seconds_per_step must be a finite number >= 0", got=self.seconds_per_step)
        object.__setattr__(self, "costs", (0.0, *costs[1:]))
        padded = list(range(len(costs)))
        for width in range(len(costs) - 2, 1, -1):
            wider = padded[width + 1]
            if costs[wider] < costs[width]:
                padded[width] = wider
        object.__setattr__(self, "padded", tuple(padded))
        paying = (width for width, cost in enumerate(costs) if width > max(1, cost))
        object.__setattr__(self, "widest_paying", max(paying, default=1))
        object.__setattr__(self, "max_width", len(costs) - 1)

    @classmethod
    def linear(cls, per_token: float, max_width: int, *, seconds_per_step: float = 0.0) -> CostCurve:
        """Create a curve on which each token after the first costs ``per_token`` plain steps."""
        if max_width < 1:
            raise InvalidCostError("max_width must be >= 1", got=max_width)
        return cls((0.0, *(1.0 + per_token * (w - 1) for w in range(1, max_width + 1))), seconds_per_step)

    @classmethod
    def guessed(
        cls, max_width: int, per_token: float | None = None, *, seconds_per_step: float = 0.0
    ) -> CostCurve:
        """Create a guess for a target that was not measured.

        Args:
            per_token: cost of each token after the first, in plain steps; None for a typical value of
                a mid-sized model.
        """
        width = max(1, min(_GUESSED_WIDTH, max_width))
        each = _GUESSED_COST_PER_TOKEN if per_token is None else per_token
        return cls.linear(each, width, seconds_per_step=seconds_per_step)

    @classmethod
    def from_samples(cls, samples: Mapping[int, float], *, seconds_per_step: float = 0.0) -> CostCurve:
        """Create a curve from the costs of some widths, width 1 among them.

        A width between two samples gets the larger cost of both, so that no unmeasured width appears cheap.
        """
        widths = sorted(samples)
        if not widths or widths[0] != 1:
            raise InvalidCostError("samples must hold width 1", got=widths[:4])
        costs = [0.0] * (widths[-1] + 1)
        for low, high in itertools.pairwise(widths):
            for width in range(low + 1, high):
                costs[width] = max(samples[low], samples[high])
        for width in widths:
            costs[width] = samples[width]
        return cls(tuple(costs), seconds_per_step)

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> CostCurve:
        """Create a curve from the seconds of a step of each width; ``seconds[0]`` is unused.

        Raises:
            InvalidCostError: no width, a value that is NaN, infinite or negative, or ``seconds[1]`` of 0.
        """
        plain = float(seconds[1]) if len(seconds) > 1 else 0.0
        if not 0.0 < plain < math.inf:
            raise InvalidCostError("seconds of a plain step must be a finite number > 0", got=plain)
        return cls((0.0, 1.0, *(float(each) / plain for each in seconds[2:])), plain)

    @property
    def native(self) -> StepCosts:
        """The costs in the native core, which finds the best prefix of a draft."""
        found = self._native
        if found is None:
            from suffixsvc.core import StepCosts  # noqa: PLC0415 - adapters import the driver without the core

            found = StepCosts(self.costs)
            object.__setattr__(self, "_native", found)
        return found

    def cost(self, width: int) -> float:
        """Return the cost of a step of ``width`` tokens.

        Beyond the curve, the cost is in proportion to that of its last width.
        """
        known = self.max_width
        return self.costs[width] if width <= known else self.costs[known] * width / known

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of a step of each width; entry 0 is unused, and all are 0 if nothing was measured."""
        return tuple(cost * self.seconds_per_step for cost in self.costs)

    def padded_width(self, width: int, room: int) -> int:
        """Return the cheapest width from ``width`` to ``room``; a plain step (width 1) is never padded."""
        best = self.padded[width]
        if best <= room:
            return best
        return min(range(width, room + 1), key=self.costs.__getitem__, default=width)

    def effective(self) -> npt.NDArray[np.float32]:
        """Return float32[max_width + 1]: the costs with padding applied, the form that layers take."""
        return np.array([self.costs[self.padded[w]] for w in range(len(self.costs))], dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data that :meth:`from_json` reads."""
        return {"costs": list(self.costs), "seconds_per_step": self.seconds_per_step}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostCurve:
        """Create a curve from the data of :meth:`to_json`.

        Raises:
            InvalidCostError: other data.
        """
        costs, seconds = data.get("costs"), data.get("seconds_per_step", 0.0)
        if not is_number_list(costs) or not is_number_list([seconds]):
            raise InvalidCostError("costs must be a list of numbers", got=repr(costs)[:80])
        return cls(tuple(float(c) for c in costs or ()), float(seconds))


def is_number_list(values: Any) -> bool:
    """Whether JSON data is a list of numbers."""
    return isinstance(values, list) and all(
        isinstance(each, (int, float)) and not isinstance(each, bool) for each in values
    )
