"""Counters of a client, which state the reason of every empty draft."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ClientStats", "Counters", "EmptyReason"]


class EmptyReason(enum.StrEnum):
    """Why a step returned an empty draft that is not the service's own answer."""

    #: no answer within the timeout
    TIMEOUT = "timeout"
    #: the service cannot be reached or is stopping; the session may not be open yet
    UNAVAILABLE = "unavailable"
    #: an answer that violates the protocol
    PROTOCOL = "protocol"
    #: not sent: the circuit breaker is open
    BREAKER_OPEN = "breaker-open"
    #: the service has lost the session; it is being opened again
    SESSION_LOST = "session-lost"
    #: the service refuses the session: over a limit, or another tokenizer
    REFUSED = "refused"
    #: the service answered this step with another error
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the client was created. ``empty`` has an entry for each reason that occurred."""

    steps: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    reopened: int = 0
    late_replies: int = 0
    empty: dict[EmptyReason, int] = field(default_factory=dict)


class Counters:
    """Mutable counters behind :class:`ClientStats`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = self._drafts = self._draft_tokens = self._reopened = 0
        self._empty: Counter[EmptyReason] = Counter()

    def on_answers(self, tokens: Sequence[int]) -> None:
        """Count answered steps, given the lengths of their drafts."""
        with self._lock:
            self._steps += len(tokens)
            self._drafts += len(tokens) - tokens.count(0)
            self._draft_tokens += sum(tokens)

    def empty(self, reason: EmptyReason) -> None:
        """Count a step that was not answered with a draft."""
        with self._lock:
            self._steps += 1
            self._empty[reason] += 1

    def reopened(self) -> None:
        """Count a session that was opened again."""
        with self._lock:
            self._reopened += 1

    def snapshot(self, late_replies: int) -> ClientStats:
        """The counts so far, with those of late replies from the transport."""
        with self._lock:
            return ClientStats(
                self._steps, self._drafts, self._draft_tokens, self._reopened, late_replies, dict(self._empty)
            )
