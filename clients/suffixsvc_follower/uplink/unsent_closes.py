"""Closes without a waiting caller, until the service has answered: the journal of a follower."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.errors import SuffixError
from suffixsvc.types import OutputId
from suffixsvc_follower.uplink.sent_session import SentSession

#: attempts at the same time: a service that hangs leaves closers to the closes that are waited for
_CONCURRENT: Final = 16

#: receives the id of the stored output, None where nothing was stored, or the error of the close
OnClosed = Callable[[OutputId | None, SuffixError | None], None]


def _ignored(_output_id: OutputId | None, _error: SuffixError | None) -> None:
    """Receives the end of a discard, which has no receiver."""


@dataclass(slots=True, eq=False)
class UnsentClose:
    """One close.

    Attributes:
        commit: with the output, which is sent first; False discards it.
        on_closed: called once.
        tokens: of the session.
    """

    session: SentSession
    commit: bool
    incomplete: bool = False
    on_closed: OnClosed = _ignored
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = len(self.session)


class UnsentCloses:
    """The closes in the order in which they were begun. Thread-safe.

    Args:
        max_tokens: of their sessions; of more, the oldest are given up, but never the only one.
    """

    def __init__(self, max_tokens: int) -> None:
        self._most = max_tokens
        self._changed = threading.Condition()
        #: whether an attempt is due
        self._due: dict[UnsentClose, bool] = {}
        self._tokens = 0
        self._attempts = 0
        #: the last attempt failed: no others before :meth:`retry`
        self._paused = False

    def __len__(self) -> int:
        return len(self._due)

    @property
    def tokens(self) -> int:
        """Number of tokens of their sessions."""
        return self._tokens

    @property
    def outputs(self) -> int:
        """How many of them have an output."""
        with self._changed:
            return sum(close.commit for close in self._due)

    def add(self, close: UnsentClose) -> list[UnsentClose]:
        """Add a close; returns those that are given up because of the limit."""
        given_up = []
        with self._changed:
            self._due[close] = True
            self._tokens += close.tokens
            while self._tokens > self._most and len(self._due) > 1:
                given_up.append(next(iter(self._due)))
                self._forget(given_up[-1])
        return given_up

    def next(self) -> UnsentClose | None:
        """The next close to attempt; None: none is due, or enough are on their way."""
        with self._changed:
            if self._paused or self._attempts >= _CONCURRENT:
                return None
            found = next((close for close, due in self._due.items() if due), None)
            if found is not None:
                self._due[found] = False
                self._attempts += 1
            return found

    def failed(self, close: UnsentClose) -> None:
        """The service did not answer an attempt."""
        with self._changed:
            self._attempts -= 1
            self._paused = True
            if close in self._due:
                self._due[close] = True
            self._changed.notify_all()

    def remove(self, close: UnsentClose) -> bool:
        """An attempt ended otherwise; whether the close was not given up meanwhile."""
        with self._changed:
            self._attempts -= 1
            known = close in self._due
            if known:
                self._forget(close)
            return known

    def retry(self) -> None:
        """Allow attempts again."""
        with self._changed:
            self._paused = False

    def wait(self, seconds: float) -> None:
        """Wait until all are answered, an attempt has failed, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._due or self._paused, seconds)

    def take_all(self) -> list[UnsentClose]:
        """Remove all."""
        with self._changed:
            taken = list(self._due)
            for close in taken:
                self._forget(close)
            return taken

    def _forget(self, close: UnsentClose) -> None:
        del self._due[close]
        self._tokens -= close.tokens
        self._changed.notify_all()
