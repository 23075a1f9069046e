"""What asking a layer costs and what it is worth, learned while generating.

An acceptance rate does not tell: a layer that is always right about what the layers before it have
drafted already gains nothing. What counts is the gain a question adds to the step, in tokens. It depends
on two things known before asking: how long the layer has been of no use (hits come in runs), and how good
the draft at hand is already.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from suffixsvc_driver.tally import Tally

__all__ = ["Asking"]

#: steps since the layer last added something: first of each bucket after the first
_DRY_EDGES: Final = (1, 2, 3, 5, 9, 17)
#: gain of the draft at hand, tokens: likewise
_GAIN_EDGES: Final = (1e-9, 0.5, 2.0)
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
        self._cells: dict[tuple[int, int], Tally] = {}

    def worth(self, dry_steps: int, gain_at_hand: float) -> float:
        """Tokens a question is expected to add to a step.

        Args:
            dry_steps: steps since the layer last added something.
            gain_at_hand: gain of the best draft of the layers before it.
        """
        value = self._all.mean(_HOPE, _PRIOR)
        cell = self._cells.get(_cell(dry_steps, gain_at_hand))
        return value if cell is None else cell.mean(value, _PRIOR)

    def learn(self, dry_steps: int, gain_at_hand: float, added: float) -> None:
        """A question was asked in this situation and added so many tokens to the step's expected gain."""
        self._all.add(added)
        self._cells.setdefault(_cell(dry_steps, gain_at_hand), Tally(_CAP)).add(added)

    def due(self, every_steps: int, seconds_per_step: float, price: float | None = None) -> bool:
        """Whether to ask although it has not been worth it: after so many steps without a question, and
        never so often that trying takes more than its share of the time.

        Args:
            price: of the question, seconds; None = what questions have cost so far.
        """
        waited = self._steps_unasked
        seconds = self.seconds if price is None else price
        return waited >= every_steps and seconds <= _TRYING_SHARE * waited * seconds_per_step

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


def _cell(dry_steps: int, gain_at_hand: float) -> tuple[int, int]:
    return bisect_right(_DRY_EDGES, dry_steps), bisect_right(_GAIN_EDGES, gain_at_hand)
