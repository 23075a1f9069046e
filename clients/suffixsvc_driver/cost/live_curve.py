"""Online estimate of a cost curve: a Kalman filter corrected by the seconds of every step.

The costs of a shared machine change within the hour: another process takes or frees a core, memory bandwidth
changes, the context grows. A curve measured at the start gives the shape of the costs rather than their
values. The state of the filter is the logarithm of the seconds of every width, with a covariance, and each
step corrects all widths according to their correlation with its own (Kalman 1960; recursive least squares
with a prior).

The covariance follows the roofline model (Williams, Waterman and Patterson 2009). A step is bound by
memory traffic, which does not depend on the number of tokens, or by arithmetic, which is proportional
to it. A plain step is bound by memory, a wide step mostly by arithmetic. The error of the curve has
five independent components:

    whole       common to all widths: clock rate, load of the machine
    memory      in proportion to the share of memory traffic in a width
    arithmetic  in proportion to the remaining share
    near        common to neighbouring widths: what the model above does not describe
    own         of one width; largest for the plain step, which runs other kernels (matrix times vector)

After a few plain steps the plain step is known and about half of its change is expected of wide steps; the
first wide step corrects all of them. The published cost of a width is its expected cost plus a part of its
standard deviation, so a width without recent steps costs more until a step confirms it.

Outliers are downweighted by their distance. Three outliers in a row on the same side count as a change of the
machine: the covariance is then reset to the prior.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc_driver.cost.curve import CostCurve

#: uncertainty of the initial curve, in multiples of the prior standard deviations: measured just now, read
#: from a file, or guessed from a few steps
MEASURED: Final = 0.3
STORED: Final = 1.0
GUESSED: Final = 2.0

#: prior standard deviations of the logarithms; 0.2 is about 20 %
_WHOLE: Final = 0.4
_MEMORY: Final = 0.2
_ARITHMETIC: Final = 0.2
_NEAR: Final = 0.08
_OWN: Final = 0.02
_OWN_PLAIN: Final = 0.1
#: standard deviation of the logarithm of a step's seconds, on a machine with other load
_SCATTER: Final = 0.05
#: additional standard deviation of a curve whose seconds are unknown
_UNKNOWN: Final = 10.0
#: exponent of memory's share in a width: (plain / cost) ** _SHARPNESS
_SHARPNESS: Final = 3.0
#: distance, in octaves of width, over which the correlation of "near" falls to 1 / e
_OCTAVES: Final = 1.0
#: share of the prior covariance that returns with each step, applied once per _BATCH steps
_FORGET: Final = 0.0008
_BATCH: Final = 8
#: standard deviations added to the expected cost
_MARGIN: Final = 0.5
#: relative change from which on a new curve is published, and change of a width from which on this is checked
_PUBLISHED_CHANGE: Final = 0.03
_CHECKED_CHANGE: Final = 0.01
#: cost of steps, in plain steps, after which a step without drafts is due
_PLAIN_DUE: Final = 200.0
#: steps without drafts after which a step with drafts is due, whatever its cost
_DRAFT_DUE: Final = 200
#: a step of _TRIAL_WIDTH tokens is tried if the standard deviation of its relative cost is larger than
#: _UNCERTAIN, at the earliest _TRIAL_AFTER steps after the last one with drafts, at _TRIAL_COST per token
_TRIAL_WIDTH: Final = 4
_UNCERTAIN: Final = 0.15
_TRIAL_AFTER: Final = 8
_TRIAL_COST: Final = 0.3
#: widths with a state each; above, widths within a quarter of an octave share one
_SINGLE_WIDTHS: Final = 32
_STATES_PER_OCTAVE: Final = 4

_Floats = npt.NDArray[np.float64]


class LiveCurve:
    """Cost curve that learns from the steps of a target. Share one between its generations. Not thread-safe.

    Args:
        curve: initial estimate (see :mod:`suffixsvc_driver.profile.target_cost`).
        uncertainty: of the initial estimate: :data:`MEASURED`, :data:`STORED` or :data:`GUESSED`.

    Attributes:
        curve: current costs, to decide by.
    """

    def __init__(self, curve: CostCurve, uncertainty: float = STORED) -> None:
        from suffixsvc.core import KalmanFilter  # noqa: PLC0415 - adapters import the driver without the core

        self.curve = curve
        unit = curve.seconds_per_step
        costs = np.maximum(np.array(curve.costs[1:]), 1e-6)
        #: initial logarithms of seconds, by width
        self._initial: _Floats = np.log(costs * (unit or 1.0))
        self._initial_of: list[float] = self._initial.tolist()
        #: index of the state of each width
        self._state_of = [_state_index(width) for width in range(1, curve.max_width + 1)]
        self._states = np.array(self._state_of)
        prior = _covariance(costs, self._states)
        #: of the corrections of the initial logarithms, by state
        self._filter = KalmanFilter(
            prior.ravel(), len(prior), uncertainty * uncertainty, 0.0 if unit else _UNKNOWN**2
        )
        self._unit_known = bool(unit)
        self._published = np.log(costs)
        self._steps = 0
        self._since_plain = 0.0
        self._since_wide = 0

    @property
    def seconds_per_step(self) -> float:
        """Estimated seconds of a plain step; 0 while unknown."""
        return math.exp(self._initial_of[0] + self._filter.value(0)) if self._unit_known else 0.0

    @property
    def plain_due(self) -> bool:
        """Whether a step without drafts is due, to keep the unit of all relative costs up to date."""
        return self._since_plain >= _PLAIN_DUE

    def trial(self, base: int = 1) -> CostCurve | None:
        """Return the curve of an exploratory step if one is due, else None.

        A driver that does not draft because of an estimate cannot observe that the cost has fallen; the
        returned curve makes drafts of a few tokens cheap for one step.

        Args:
            base: tokens of the step without drafts.
        """
        width = min(max(_TRIAL_WIDTH, base + 1), len(self._state_of))
        if self._since_wide < _TRIAL_AFTER or width <= base:
            return None
        # The widths next to a wide base are strongly correlated with it, so their variance is small even if
        # the estimate is wrong; there only the time since the last draft triggers a trial.
        plain, wide = self._state_of[base - 1], self._state_of[width - 1]
        relative = self._filter.difference_variance(plain, wide)
        if relative <= _UNCERTAIN**2 and self._since_wide < _DRAFT_DUE:
            return None
        # with seconds_per_step, by which query costs are converted: they apply in a trial, too
        widest = min(base + _TRIAL_WIDTH - 1, len(self._state_of))
        return _trial_curve(widest, self.curve.seconds_per_step)

    def expected(self) -> CostCurve:
        """Return the expected costs without the margin: for forecasts, not for decisions."""
        return self._curve_of(self._expected())

    def observe(self, width: int, seconds: float, base: int = 1) -> None:
        """Correct the estimate by the seconds of a step. 0 seconds, or a width beyond the curve, are ignored.

        Args:
            width: tokens of the batch, the newest emitted token and replayed ones included.
            base: width of the step without drafts.
        """
        if not 0.0 < seconds < math.inf or not 1 <= width <= len(self._state_of):
            return
        self._since_plain = 0.0 if width <= base else self._since_plain + self.curve.costs[width]
        self._since_wide = self._since_wide + 1 if width <= base else 0
        measured = math.log(seconds) - self._initial_of[width - 1]
        change = self._filter.observe_robustly(self._state_of[width - 1], measured, _SCATTER)
        self._unit_known = True
        self._steps += 1
        if self._steps >= _BATCH:
            self._filter.forget(self._steps * _FORGET)
            self._steps = 0
            self._publish()
        elif abs(change) > _CHECKED_CHANGE:
            self._publish()

    def _expected(self) -> _Floats:
        """Logarithm of the expected relative cost, by width."""
        now: _Floats = self._initial + self._filter.values()[self._states]
        now -= now[0]
        return now

    def _publish(self) -> None:
        """Replace :attr:`curve` if the costs have changed enough."""
        relative = [self._filter.difference_variance(0, state) for state in range(self._filter.size)]
        margin = _MARGIN * np.sqrt(np.maximum(relative, 0.0))
        now = self._expected() + margin[self._states]
        unit, published = self.seconds_per_step, self.curve.seconds_per_step
        if (
            abs(unit - published) > _PUBLISHED_CHANGE * published
            or float(np.abs(now - self._published).max()) > _PUBLISHED_CHANGE
        ):
            self._published = now
            self.curve = self._curve_of(now)

    def _curve_of(self, logarithms: _Floats) -> CostCurve:
        return CostCurve((0.0, 1.0, *np.exp(logarithms[1:]).tolist()), self.seconds_per_step)


@lru_cache(maxsize=16)  # one is due in every step until a layer drafts
def _trial_curve(widest: int, seconds_per_step: float) -> CostCurve:
    return CostCurve.linear(_TRIAL_COST, widest, seconds_per_step=seconds_per_step)


def _state_index(width: int) -> int:
    if width <= _SINGLE_WIDTHS:
        return width - 1
    return _SINGLE_WIDTHS + int(_STATES_PER_OCTAVE * math.log2((width - 1) / _SINGLE_WIDTHS))


def _covariance(costs: _Floats, states: npt.NDArray[np.int_]) -> _Floats:
    """Prior covariance of the errors of a stored curve's logarithms; see the module's docstring."""
    first = np.unique(states, return_index=True)[1]
    memory = np.minimum(1.0, 1.0 / costs[first]) ** _SHARPNESS
    arithmetic = 1.0 - memory
    octave = np.log2(first + 1.0) / _OCTAVES
    near = np.exp(-np.abs(np.subtract.outer(octave, octave)))
    covariance: _Floats = (
        _WHOLE**2
        + _MEMORY**2 * np.outer(memory, memory)
        + _ARITHMETIC**2 * np.outer(arithmetic, arithmetic)
        + _NEAR**2 * near
        + _OWN**2 * np.eye(len(first))
    )
    covariance[0, 0] += _OWN_PLAIN**2
    return covariance
