"""What asking a layer costs and what it is worth, learned while generating.

An acceptance rate does not tell: a layer that is always right about what the layers before it have
drafted already gains nothing. What counts is the gain that a question adds to the step, in tokens. It depends
on what is known before asking: for how many steps the layer has been of no use. Hits come in runs, so the
question that finds one is worth what the questions after it add, too, less their price: as many of them as
would have passed before a trial had found the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

from suffixsvc_driver.tally import Tally

__all__ = ["Asking", "Run"]

#: steps since the layer last added something: first of each bucket after the first
_DRY_EDGES: Final = (1, 2, 3, 5, 9, 17)
#: tokens a question is hoped to add before anything was seen
_HOPE: Final = 0.5
#: how many questions the level above weighs
_PRIOR: Final = 6.0
_CAP: Final = 256.0
#: weight of the newest measurement of what a question costs, the last one being of the step before
_COST_STEP: Final = 0.2
#: from so many measurements on, one that is so many times the price so far counts as no more than that: the
#: answer that somebody else's work fell into must not shut a layer out
_KNOWN_AFTER: Final = 4
_OUTLIER: Final = 4.0
#: share of the time that may go into trying layers that have not been worth asking
_TRYING_SHARE: Final = 0.02
#: so small a share is always worth it: a run that begins meanwhile is found early
_TRIFLING_SHARE: Final = 0.002


class Run:
    """Hits in a row, credited to the question that found them. Of one generation: what another one's
    questions add has nothing to do with it.

    Args:
        found_by: the tally of that question's situation.
        sooner: steps by which it found the run sooner than a trial would have. Later hits are not credited to
            it: a long run would pay for hundreds of questions that find nothing.
    """

    __slots__ = ("_found_by", "_left")

    def __init__(self, found_by: Tally, sooner: float) -> None:
        self._found_by, self._left = found_by, sooner

    def go_on(self, added: float, price: float) -> None:
        """The next question of it added so many tokens, and cost that many."""
        share = min(1.0, self._left)
        self._left -= share
        self._found_by.total += share * (added - price)


class Asking:
    """One layer's questions: price in seconds, worth in tokens. Not thread-safe.

    Args:
        guess_seconds: what a question is taken to cost before one was measured.
    """

    def __init__(self, guess_seconds: float) -> None:
        self.seconds = guess_seconds
        self._steps_unasked = 0
        self._waited = 0
        self._measured = 0
        self._all = Tally(_CAP)
        self._cells: dict[int, Tally] = {}

    def worth(self, dry_steps: int) -> float:
        """Tokens a question is expected to add to a step.

        Args:
            dry_steps: steps since the layer last added something.
        """
        value = self._all.mean(_HOPE, _PRIOR)
        cell = self._cells.get(_situation(dry_steps))
        return value if cell is None else cell.mean(value, _PRIOR)

    def learn(self, dry_steps: int, added: float) -> Tally:
        """A question was asked in this situation and added so many tokens to the step's expected gain.
        Returns the situation's tally, for a :class:`Run` that begins there."""
        self._all.add(added)
        cell = self._cells.setdefault(_situation(dry_steps), Tally(_CAP))
        cell.add(added)
        return cell

    def due(self, every_steps: int, seconds_per_step: float, price: float | None = None) -> bool:
        """Whether to ask although it has not been worth it: as soon as that takes a trifling share of the
        time, or after so many steps without a question, and never so often that trying takes more than its
        share.

        Args:
            price: of the question, seconds; None = what questions have cost so far.
        """
        waited = self._steps_unasked
        return waited > 0 and waited >= self.trial_after(every_steps, seconds_per_step, price)

    def trial_after(self, every_steps: int, seconds_per_step: float, price: float | None = None) -> float:
        """So many steps without a question make one due. Arguments as those of :meth:`due`."""
        seconds = self.seconds if price is None else price
        if seconds <= 0.0:
            return 0.0
        if seconds_per_step <= 0.0:
            return math.inf
        steps = seconds / seconds_per_step
        return min(steps / _TRIFLING_SHARE, max(every_steps, steps / _TRYING_SHARE))

    def asked(self) -> None:
        """A question is on its way."""
        self._waited, self._steps_unasked = self._steps_unasked, 0

    def pass_over(self) -> None:
        """No question in this step."""
        self._steps_unasked += 1

    def measure(self, seconds: float) -> None:
        """The question took so long; 0 is no measurement. The longer the pause before it, the less the
        price from before counts: one slow answer must not shut a layer out for good."""
        if seconds > 0.0:
            self._measured += 1
            if self._measured > _KNOWN_AFTER:
                seconds = min(seconds, _OUTLIER * self.seconds)
            weight = 1.0 - (1.0 - _COST_STEP) ** (1 + self._waited)
            self.seconds += weight * (seconds - self.seconds)


def _situation(dry_steps: int) -> int:
    return bisect_right(_DRY_EDGES, dry_steps)
