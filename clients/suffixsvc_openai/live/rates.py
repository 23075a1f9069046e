"""Speed of all lanes together, second by second, beside the speed without drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.decode.running_batch import BatchRecord

#: seconds with steps that are kept
KEPT_SECONDS: Final = 120


@dataclass(slots=True)
class Second:
    """The steps that ended within a second.

    Attributes:
        at: the second, of the clock.
        tokens: emitted tokens.
        seconds: of the steps.
        plain_seconds: of as many tokens without drafts, by the cost curve; 0 if a part of it is unknown.
    """

    at: int
    tokens: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0


class Rates:
    """The last seconds with steps. One thread adds, others read.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: deque[Second] = deque(maxlen=KEPT_SECONDS)

    def add(self, record: BatchRecord) -> None:
        """Add a step."""
        at = int(self._clock())
        if not self._seconds or self._seconds[-1].at != at:
            self._seconds.append(Second(at))
        now = self._seconds[-1]
        now.tokens += record.emitted
        now.seconds += record.seconds
        now.plain_seconds += record.plain_seconds

    def since(self, at: int) -> list[Second]:
        """Return the complete seconds after ``at``, and the one that may still grow."""
        # a copy: the other thread appends while this one iterates
        return [each for each in self._seconds.copy() if each.at > at]
