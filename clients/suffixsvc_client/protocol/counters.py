"""Counters of a client, which state the reason of every empty draft."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


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
    #: over a limit that the passing of time ends, such as a rate: the service refused the step, or it was not
    #: sent before the time that the service named
    LIMITED = "limited"
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
        self._counts: Counter[str] = Counter()
        self._empty: Counter[EmptyReason] = Counter()

    def on_answers(self, tokens: Sequence[int]) -> None:
        """Count answered steps, given the lengths of their drafts."""
        drafts = len(tokens) - tokens.count(0)
        with self._lock:
            # one by one: `update` takes a microsecond more, for which every step waits
            self._counts["steps"] += len(tokens)
            self._counts["drafts"] += drafts
            self._counts["draft_tokens"] += sum(tokens)

    def empty(self, reason: EmptyReason) -> None:
        """Count a step that was not answered with a draft."""
        with self._lock:
            self._counts["steps"] += 1
            self._empty[reason] += 1

    def reopened(self) -> None:
        """Count a session that was opened again."""
        with self._lock:
            self._counts["reopened"] += 1

    def snapshot(self, late_replies: int) -> ClientStats:
        """The counts so far, with those of late replies from the transport."""
        with self._lock:
            return ClientStats(late_replies=late_replies, empty=dict(self._empty), **self._counts)
