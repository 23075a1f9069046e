"""What steps cost now, learned from every step that is taken.

A shared machine changes within the hour: another process takes a core or gives it back, memory becomes faster
or slower, a text grows. What was measured before the start says what shape the costs have, not what they are.
So the seconds of every width are an estimate with a covariance, and each step that is taken corrects all of
them, as far as they have something in common with it: a Kalman filter (Kalman 1960; recursive least squares
with a prior) on the logarithms of the seconds.

What widths have in common is a roofline (Williams, Waterman and Patterson 2009): a step is bound by memory,
which is read once however many tokens there are, or by arithmetic, of which each token has its own. A plain
step is all memory, a wide one hardly. So the costs may be off in five ways, and each has a variance:

    whole      all widths alike: a slower clock, a busy machine
    memory     a width by the share that memory has in it
    arithmetic a width by the rest
    near       neighbours in width together: what the model above leaves out
    own        a width by itself, most of all the plain step, which other code computes (a matrix times a
               vector) than the rest

A few plain steps say what a plain one takes, and half of the change is expected of the wide ones; the first
wide one tells for all of them. A price is what a width is expected to cost, and a part of its standard
deviation more: a width that was not seen lately is dearer than it probably is, until a step takes it.

Steps that other work fell into are told from a change by what comes next. The farther one lies off, the less
it counts; but three in a row on the same side are no accident, and all is in doubt again.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc_driver.curve import CostCurve

__all__ = ["GUESSED", "KEPT", "MEASURED", "LiveCurve"]

#: how far a curve may be off, in multiples of the standard deviations below: it was measured just now, some
#: time ago, or was guessed from a few steps
MEASURED: Final = 0.3
KEPT: Final = 1.0
GUESSED: Final = 2.0

#: standard deviations of logarithms: 0.2 is 20 %
_WHOLE: Final = 0.4
_MEMORY: Final = 0.2
_ARITHMETIC: Final = 0.2
_NEAR: Final = 0.08
_OWN: Final = 0.02
_OWN_PLAIN: Final = 0.1
#: of a step's seconds around their median, on a machine that does something else besides
_SCATTER: Final = 0.05
#: of a curve whose seconds are unknown: anything
_UNKNOWN: Final = 10.0
#: how sharply a step is bound by the one or the other: memory's share in a width is (plain / cost) ** this
_SHARPNESS: Final = 3.0
#: widths over which "near" falls to a third, in octaves
_OCTAVES: Final = 1.0
#: the share of what was learned that is in doubt again after each step; and how many steps are done at once
_FORGET: Final = 0.0008
_TOGETHER: Final = 8
#: a plain step is known well from this share of a step's variance on
_SETTLED: Final = 0.5
#: standard deviations from which on a step counts less, and how many such steps in a row are no accident
_FAR: Final = 2.0
_NO_ACCIDENT: Final = 3
#: standard deviations by which a price is above what is expected
_CARE: Final = 0.5
#: a price that moved by less is left as it is; a step that moved its own by less is no reason to look
_WORTH_CHANGING: Final = 0.03
_WORTH_LOOKING: Final = 0.01
#: plain steps' worth of time after which a step without drafts is due
_PLAIN_DUE: Final = 200.0
#: steps without drafts after which one is due, whatever its price
_DRAFT_DUE: Final = 200
#: a draft is tried where what a step of this many tokens costs is in doubt by more, and not sooner than so
#: many steps after the last one with drafts; and by which price a token of it must be worth it
_TRIED_WIDTH: Final = 4
_DOUBTFUL: Final = 0.15
_TRY_AFTER: Final = 8
_TRIED_PRICE: Final = 0.3
#: widths that are each estimated alone; above, widths of a quarter of an octave share what they are off by
_ALONE: Final = 32
_PER_OCTAVE: Final = 4

_Floats = npt.NDArray[np.float64]


class LiveCurve:
    """Shared between the generations of one target. Not thread-safe.

    Args:
        curve: measured or guessed before (see :mod:`suffixsvc_driver.cost`).
        doubt: how far it may be off: :data:`MEASURED`, :data:`KEPT`, :data:`GUESSED`.

    Attributes:
        curve: prices to decide by, as they are now.
        changes: how often they were corrected.
    """

    def __init__(self, curve: CostCurve, doubt: float = KEPT) -> None:
        self.curve = curve
        self.changes = 0
        unit = curve.seconds_per_step
        costs = np.maximum(np.array(curve.costs[1:]), 1e-6)
        self._known: _Floats = np.log(costs * (unit or 1.0))
        self._known_of: list[float] = self._known.tolist()
        #: of each width, which estimate is its own
        self._slot_of = [_slot(width) for width in range(1, curve.max_width + 1)]
        self._slots = np.array(self._slot_of)
        self._prior = _covariance(costs, self._slots)
        self._doubt: _Floats = doubt * doubt * self._prior
        if not unit:
            self._doubt += _UNKNOWN**2
        size = len(self._doubt)
        #: by how much each is off, as a logarithm
        self._off: _Floats = np.zeros(size)
        self._gain: _Floats = np.empty(size)
        self._learned: _Floats = np.empty((size, size))
        self._seen = bool(unit)
        self._shown = np.log(costs)
        self._steps = 0
        self._in_a_row = [0, 0]  # plain steps, and others, that lay far off; below 0 they were too quick
        self._since_plain = 0.0
        self._since_wide = 0
        #: whether a plain step is known as well as one step tells; then so many wait, with this sum
        self._settled = False
        self._pooled, self._pool = 0, 0.0

    @property
    def seconds_per_step(self) -> float:
        """What a plain step takes now; 0 while that is unknown."""
        return math.exp(self._known_of[0] + float(self._off[0])) if self._seen else 0.0

    @property
    def plain_due(self) -> bool:
        """Whether a step without drafts is due: its price must stay known, since the others are relative to
        it."""
        return self._since_plain >= _PLAIN_DUE

    def trial(self, base: int = 1) -> CostCurve | None:
        """Prices by which to decide this once, where it is time to see what a step of some tokens costs now:
        who never drafts because of a price never learns that it has fallen.

        Args:
            base: tokens in the step in any case.
        """
        width = min(max(_TRIED_WIDTH, base + 1), len(self._slot_of))
        if self._since_wide < _TRY_AFTER or width <= base:
            return None
        # Of a batch that is wide in any case its neighbours are hardly in doubt, right or wrong: time alone
        # tells there.
        plain, wide, doubt = self._slot_of[base - 1], self._slot_of[width - 1], self._doubt
        apart = float(doubt[wide, wide] - 2.0 * doubt[plain, wide] + doubt[plain, plain])
        if apart <= _DOUBTFUL**2 and self._since_wide < _DRAFT_DUE:
            return None
        # with the unit: questions are priced in plain steps by it, and a trial makes none of them free
        widest = min(base + _TRIED_WIDTH - 1, len(self._slot_of))
        return CostCurve.linear(_TRIED_PRICE, widest, seconds_per_step=self.curve.seconds_per_step)

    def expected(self) -> CostCurve:
        """What steps are expected to cost now, nothing added for doubt: to forecast by, not to decide by."""
        return self._curve_of(self._expected())

    def observe(self, width: int, seconds: float, base: int = 1) -> None:
        """A step of ``width`` tokens, the newest one and those computed again included, took so long;
        0 seconds is no measurement, and so is a width that the curve does not know.

        Args:
            base: the width it would have had without drafts.
        """
        if not 0.0 < seconds < math.inf or not 1 <= width <= len(self._slot_of):
            return
        self._since_plain = 0.0 if width <= base else self._since_plain + self.curve.costs[width]
        self._since_wide = self._since_wide + 1 if width <= base else 0
        slot = self._slot_of[width - 1]
        surprise = math.log(seconds) - self._known_of[width - 1] - float(self._off[slot])
        if width == 1 and self._settled and abs(surprise) <= _FAR * _SCATTER:
            # nearly every step where little is drafted: learned from together, which is the same
            self._in_a_row[0] = 0
            self._pooled += 1
            self._pool += surprise
            if self._pooled == _TOGETHER:
                self._empty_pool()
            return
        if self._pooled:
            known = float(self._off[slot])
            self._empty_pool()
            surprise -= float(self._off[slot]) - known
        self._learn(slot, surprise, self._noise(slot, surprise), 1)

    def _empty_pool(self) -> None:
        steps, surprise = self._pooled, self._pool / self._pooled
        self._pooled, self._pool = 0, 0.0
        self._learn(0, surprise, _SCATTER**2 / steps, steps)

    def _learn(self, slot: int, surprise: float, noise: float, steps: int) -> None:
        """Correct what all widths are off by."""
        row = self._doubt[slot]
        gain = np.multiply(row, 1.0 / (float(row[slot]) + noise), out=self._gain)
        self._doubt -= np.multiply(gain[:, None], row, out=self._learned)
        gain *= surprise
        self._off += gain
        self._seen = True
        self._steps += steps
        if self._steps >= _TOGETHER:
            self._doubt += self._steps * _FORGET * (self._prior - self._doubt)
            self._steps = 0
            self._settled = float(self._doubt[0, 0]) < _SETTLED * _SCATTER**2
            self._look()
        elif abs(float(gain[slot])) > _WORTH_LOOKING:
            self._look()

    def _noise(self, slot: int, surprise: float) -> float:
        """The variance that a step is taken to have besides what is in doubt anyway."""
        far = abs(surprise) / (_FAR * _SCATTER)
        kind = min(slot, 1)
        if far <= 1.0:
            self._in_a_row[kind] = 0
            return _SCATTER**2
        if abs(surprise) <= _FAR * math.sqrt(float(self._doubt[slot, slot]) + _SCATTER**2):
            self._in_a_row[kind] = 0  # not farther than was to be expected
        else:
            side = 1 if surprise > 0.0 else -1
            before = self._in_a_row[kind]
            self._in_a_row[kind] = before + side if before * side > 0 else side
            if abs(self._in_a_row[kind]) >= _NO_ACCIDENT:
                self._in_a_row[kind] = 0
                self._settled = False
                # The shape is in doubt as at the start, no more however often this happens; and it may be all
                # widths alike, by as much as this.
                if self._doubt.trace() < self._prior.trace():
                    self._doubt = self._prior.copy()
                self._doubt += surprise**2
                return _SCATTER**2
        return (far * _SCATTER) ** 2

    def _expected(self) -> _Floats:
        """Of each width, the logarithm of what it costs in plain steps."""
        now: _Floats = self._known + self._off[self._slots]
        now -= now[0]
        return now

    def _look(self) -> None:
        """Put out new prices where these are worth a change."""
        doubt, plain = self._doubt, self._doubt[0]
        apart = doubt.diagonal() - 2.0 * plain + plain[0]
        deviations = np.sqrt(np.maximum(apart, 0.0))
        care = _CARE * deviations
        now = self._expected() + care[self._slots]
        unit, known = self.seconds_per_step, self.curve.seconds_per_step
        if (
            abs(unit - known) > _WORTH_CHANGING * known
            or float(np.abs(now - self._shown).max()) > _WORTH_CHANGING
        ):
            self._shown = now
            self.curve = self._curve_of(now)
            self.changes += 1

    def _curve_of(self, logarithms: _Floats) -> CostCurve:
        return CostCurve((0.0, 1.0, *np.exp(logarithms[1:]).tolist()), self.seconds_per_step)


def _slot(width: int) -> int:
    if width <= _ALONE:
        return width - 1
    return _ALONE + int(_PER_OCTAVE * math.log2((width - 1) / _ALONE))


def _covariance(costs: _Floats, slots: npt.NDArray[np.int_]) -> _Floats:
    """Of what the logarithms of a kept curve's seconds are off by: see above."""
    first = np.unique(slots, return_index=True)[1]
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
