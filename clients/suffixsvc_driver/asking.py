"""What asking a layer costs and what it is worth, learned while generating.

An acceptance rate does not tell: a layer that is always right about what the layers before it have
drafted already gains nothing. What counts is the gain that a question adds to the step, in tokens. It depends
on what is known before asking: for how many steps the layer has been of no use. Hits come in runs, so the
question that finds one is worth what the questions after it add, too, less their price.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from suffixsvc_driver.tally import Tally

__all__ = ["Asking"]

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
#: a run of hits goes on over so many steps that add nothing
_RUN_GAP: Final = 2
#: share of the time that may go into trying layers that have not been worth asking
_TRYING_SHARE: Final = 0.02
#: so small a share is always worth it: a run that begins meanwhile is found early
_TRIFLING_SHARE: Final = 0.002


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
        self._run: Tally | None = None  # of the question that the present run of hits began with

    def worth(self, dry_steps: int) -> float:
        """Tokens a question is expected to add to a step.

        Args:
            dry_steps: steps since the layer last added something.
        """
        value = self._all.mean(_HOPE, _PRIOR)
        cell = self._cells.get(bisect_right(_DRY_EDGES, dry_steps))
        return value if cell is None else cell.mean(value, _PRIOR)

    def learn(self, dry_steps: int, added: float, price: float = 0.0) -> None:
        """A question was asked in this situation and added so many tokens to the step's expected gain.

        Args:
            price: of the question, tokens.
        """
        self._all.add(added)
        cell = self._cells.setdefault(bisect_right(_DRY_EDGES, dry_steps), Tally(_CAP))
        cell.add(added)
        if dry_steps > _RUN_GAP:
            self._run = cell if added > 0.0 else None
        elif self._run is not None:
            self._run.total += added - price

    def due(self, every_steps: int, seconds_per_step: float, price: float | None = None) -> bool:
        """Whether to ask although it has not been worth it: as soon as that takes a trifling share of the
        time, or after so many steps without a question, and never so often that trying takes more than its
        share.

        Args:
            price: of the question, seconds; None = what questions have cost so far.
        """
        waited = self._steps_unasked
        seconds = self.seconds if price is None else price
        share = _TRYING_SHARE if waited >= every_steps else _TRIFLING_SHARE
        return waited > 0 and seconds <= share * waited * seconds_per_step

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
