"""What a client counts, so that an empty draft is never a mystery."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ClientStats", "Counters", "EmptyReason"]


class EmptyReason(enum.StrEnum):
    """Why a step came back empty without the service having said so."""

    #: no answer in time
    TIMEOUT = "timeout"
    #: the service cannot be reached, or ends; the session may not be open yet
    UNAVAILABLE = "unavailable"
    #: an answer that is not of our protocol
    PROTOCOL = "protocol"
    #: not asked: the service failed too often just now
    BREAKER_OPEN = "breaker-open"
    #: the service does not know the session any more; it is being opened again
    SESSION_LOST = "session-lost"
    #: the service will not have this session: over a limit, another tokenizer
    REFUSED = "refused"
    #: the service answered this step with another error
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts since the client was made. ``empty`` has an entry per reason that occurred."""

    steps: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    reopened: int = 0
    late_replies: int = 0
    empty: dict[EmptyReason, int] = field(default_factory=dict)


class Counters:
    """The same while it counts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = self._drafts = self._draft_tokens = self._reopened = 0
        self._empty: Counter[EmptyReason] = Counter()

    def answered(self, tokens: Sequence[int]) -> None:
        """Steps that were answered, by the length of their drafts."""
        with self._lock:
            self._steps += len(tokens)
            self._drafts += len(tokens) - tokens.count(0)
            self._draft_tokens += sum(tokens)

    def empty(self, reason: EmptyReason) -> None:
        with self._lock:
            self._steps += 1
            self._empty[reason] += 1

    def reopened(self) -> None:
        with self._lock:
            self._reopened += 1

    def snapshot(self, late_replies: int) -> ClientStats:
        with self._lock:
            return ClientStats(
                self._steps, self._drafts, self._draft_tokens, self._reopened, late_replies, dict(self._empty)
            )
