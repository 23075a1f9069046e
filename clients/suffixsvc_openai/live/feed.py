"""The answers and numbers that viewers read; fed by the engine's threads, bounded, and the same with or
without viewers.

Kept: the answers that have not ended, as many as lanes and queue hold, and of each principal the last
:data:`KEPT_ANSWERS` that have ended, each with the last tokens of its text.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.decode.requests import Outcome
from suffixsvc_driver.decode.running_batch import BatchRecord
from suffixsvc_openai.engine.observer import Observer, Progress
from suffixsvc_openai.engine.plans import Plan
from suffixsvc_openai.live.answers import Asked, Shown, Vocabulary
from suffixsvc_openai.live.numbers import Numbers
from suffixsvc_openai.live.rates import Rates

#: ended answers of a principal that are kept
KEPT_ANSWERS: Final = 8
#: seconds between two reads of the running answers, whatever the number of viewers
_REFRESH_SECONDS: Final = 0.05


@dataclass(slots=True)
class _Ended:
    """Answers of a principal that have ended: the last ones, and the number of all."""

    answers: deque[Shown] = field(default_factory=lambda: deque(maxlen=KEPT_ANSWERS))
    count: int = 0


class Feed(Observer):
    """See the module. Thread-safe.

    Args:
        clock: seconds, for the rates and between refreshes.

    Attributes:
        rates: speed of all lanes together.
        closed: viewers must end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rates = Rates(clock)
        self.closed = False
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._open: dict[int, Shown] = {}
        self._ended: dict[str, _Ended] = {}
        self._numbers = Numbers()
        self._completed = self._failed = 0
        self._refreshed = float("-inf")

    # -- the engine's threads

    def begun(self, number: int, plan: Plan, progress: Progress) -> None:
        """See the base class."""
        with self._lock:
            self._open[number] = Shown(number, Asked.of(plan), progress, time.time())

    def refused(self, number: int) -> None:
        """See the base class."""
        with self._lock:
            self._open.pop(number, None)

    def ended(self, number: int, outcome: Outcome) -> None:
        """See the base class."""
        counts = Numbers.of(outcome) if isinstance(outcome, Result) else None
        with self._lock:
            shown = self._open.pop(number, None)
            if counts is None:
                self._failed += 1
            else:
                self._completed += 1
                self._numbers.add(counts)
            if shown is not None:
                ended = self._ended.setdefault(shown.asked.principal, _Ended())
                ended.count += 1
                shown.finish(outcome, ended.count)
                ended.answers.append(shown)

    def batch(self, record: BatchRecord) -> None:
        """See the base class."""
        self.rates.add(record)

    # -- viewers

    def refresh(self, vocabulary: Vocabulary) -> None:
        """Read what has changed since the last refresh, unless that was just now."""
        with self._lock:
            now = self._clock()
            if now - self._refreshed < _REFRESH_SECONDS:
                return
            self._refreshed = now
            for shown in self._open.values():
                shown.refresh(vocabulary)
            for ended in self._ended.values():
                for shown in ended.answers:
                    shown.refresh(vocabulary)

    def of(self, principal: str) -> tuple[list[Shown], list[Shown], int]:
        """Return a principal's open answers, its ended ones, both in order, and the number of all that have
        ended."""
        with self._lock:
            running = [each for each in self._open.values() if each.asked.principal == principal]
            ended = self._ended.get(principal, _Ended())
            return running, list(ended.answers), ended.count

    def numbers(self) -> tuple[Numbers, int, int]:
        """Return the counts of all answers so far, and the numbers of those that ended well or failed."""
        with self._lock:
            total = Numbers()
            total.add(self._numbers)
            for shown in self._open.values():
                total.add(shown.numbers)
            return total, self._completed, self._failed
