"""A session of a pool: drafts on one worker at a time and moves to another one after failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from suffixsvc.errors import LimitExceededError, SuffixError
from suffixsvc.types import Draft
from suffixsvc_driver.workers.client.interface import SessionCounts
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.pool.entry import PoolEntry

#: consecutive queries without a valid reply after which a session moves
_MAX_FAILED_QUERIES: Final = 4
#: smallest number of queries between two such moves, each of which computes the text again
_MIN_QUERIES_BETWEEN_MOVES: Final = 32


class WorkerSelector(Protocol):
    """The part of a pool that its sessions call. Thread-safe."""

    def choose(self, context_length: int, leaving: PoolEntry | None = None) -> PoolEntry | None:
        """Return the best usable worker for a text of ``context_length`` tokens and raise its session count;
        None if there is none.

        Args:
            leaving: the session's current worker, whose count is lowered if another one is returned.
        """

    def release(self, entry: PoolEntry) -> None:
        """Lower a worker's session count."""

    def report(self, entry: PoolEntry, error: SuffixError | None) -> None:
        """Record that the connection to a worker failed."""

    def retire(self, session: WorkerSession) -> None:
        """Close a session on the pool's thread."""

    def speed(self) -> float:
        """Seconds per drafted token of the worker that a session would get; 0 if unknown."""


class PoolSession(SessionCounts):
    """See :class:`~suffixsvc_driver.workers.client.interface.DraftSession`.

    Attributes:
        late, busy, failures: on all its workers; see the protocol.
        moves: number of moves from one worker to another.
        unserved: queries for which there was no worker.
    """

    def __init__(self, pool: WorkerSelector, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._pool = pool
        self._options = options
        self._entry: PoolEntry | None = None
        self._session: WorkerSession | None = None
        self._text: list[int] = []
        self._past_error: SuffixError | None = None
        self._queries = 0
        self._move_after = 0
        self._served_before = False
        self._closed = False
        self.moves = 0
        self.unserved = 0

    @property
    def reading(self) -> bool:
        """See the protocol."""
        return self._session is not None and self._session.reading

    @property
    def last_error(self) -> SuffixError | None:
        """See the protocol."""
        own = self._session.last_error if self._session is not None else None
        return own or self._past_error

    @property
    def seconds_per_token(self) -> float:
        """See the protocol."""
        return self._session.seconds_per_token if self._session is not None else self._pool.speed()

    @property
    def address(self) -> str:
        """Address of the current worker; empty if there is none."""
        return self._entry.worker.address if self._entry is not None else ""

    def set_text(self, token_ids: Sequence[int]) -> None:
        """See the protocol."""
        self._text = list(token_ids)
        if self._session is not None:
            self._session.set_text(token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """See the protocol."""
        self._text.extend(token_ids)
        if self._session is not None:
            self._session.append(token_ids)

    def draft(
        self,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        """See the protocol."""
        session = self._current_session()
        if session is None:
            self.unserved += 1
            return Draft.empty()
        draft = session.draft(max_draft_tokens, timeout_seconds, after, suggested)
        self._queries += 1
        self._move_if_needed(session)
        return draft

    def close(self) -> None:
        """See the protocol."""
        self._closed = True
        session, entry = self._session, self._entry
        self._detach()
        if session is not None and entry is not None:
            session.close()
            self._pool.release(entry)

    def _current_session(self) -> WorkerSession | None:
        if self._session is None and not self._closed:
            entry = self._pool.choose(len(self._text))
            if entry is not None:
                self._attach(entry)
        return self._session

    def _attach(self, entry: PoolEntry) -> None:
        self._entry = entry
        self._session = entry.worker.open_session(counts=self, **self._options)
        self._session.set_text(self._text)
        self.moves += self._served_before
        self._served_before = True

    def _move_if_needed(self, session: WorkerSession) -> None:
        """Leave the worker if its channel failed, or move to a better one after repeated failures."""
        entry = self._entry
        if entry is None:
            return
        if session.broken:
            self._pool.report(entry, session.last_error)
            self._detach()
            self._pool.release(entry)
            self._pool.retire(session)
            return
        too_long = session.refused and isinstance(session.last_error, LimitExceededError)
        failing = session.failed_queries >= _MAX_FAILED_QUERIES and self._queries >= self._move_after
        if not (too_long or failing):
            return
        other = self._pool.choose(len(self._text), leaving=entry)
        if other is not None:
            self._detach()
            self._pool.retire(session)
            self._attach(other)
            self._move_after = self._queries + _MIN_QUERIES_BETWEEN_MOVES

    def _detach(self) -> None:
        """Drop the session."""
        session, self._session, self._entry = self._session, None, None
        if session is not None:
            self._past_error = session.last_error or self._past_error
