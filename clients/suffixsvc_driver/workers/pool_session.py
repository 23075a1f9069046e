"""A session on whichever worker of a pool serves it best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from suffixsvc.errors import LimitExceededError, SuffixError
from suffixsvc.types import Draft
from suffixsvc_driver.workers.session import WorkerSession

if TYPE_CHECKING:
    from suffixsvc_driver.workers.pool import Member, WorkerPool

__all__ = ["PoolSession"]

#: so many questions in a row without a proper answer, and a session looks for another worker
_TROUBLES: Final = 4
#: so many questions at least between two such moves: each costs reading the text again
_SETTLED: Final = 32


class PoolSession:
    """See :class:`~suffixsvc_driver.workers.interface.DraftingSession`.

    Attributes:
        moves: times it went from one worker to another.
        unserved: questions for which there was no worker.
    """

    def __init__(self, pool: WorkerPool, *, p_min: float, top_k: int, wait_seconds: float) -> None:
        self._pool = pool
        self._p_min, self._top_k, self._wait_seconds = p_min, top_k, wait_seconds
        self._member: Member | None = None
        self._session: WorkerSession | None = None
        self._text: list[int] = []
        self._past = [0, 0, 0]  # late, busy, failures with workers before
        self._past_error: SuffixError | None = None
        self._asked = 0
        self._move_after = 0
        self._served_before = False
        self._closed = False
        self.moves = 0
        self.unserved = 0

    @property
    def late(self) -> int:
        return self._past[0] + (self._session.late if self._session is not None else 0)

    @property
    def busy(self) -> int:
        return self._past[1] + (self._session.busy if self._session is not None else 0)

    @property
    def reading(self) -> bool:
        return self._session is not None and self._session.reading

    @property
    def failures(self) -> int:
        return self._past[2] + (self._session.failures if self._session is not None else 0)

    @property
    def last_error(self) -> SuffixError | None:
        own = self._session.last_error if self._session is not None else None
        return own or self._past_error

    @property
    def seconds_per_token(self) -> float:
        return self._session.seconds_per_token if self._session is not None else self._pool.speed()

    @property
    def address(self) -> str:
        """Of the worker it drafts with; empty where there is none."""
        return self._member.worker.address if self._member is not None else ""

    def set_text(self, token_ids: Sequence[int]) -> None:
        self._text = list(token_ids)
        if self._session is not None:
            self._session.set_text(token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
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
        session = self._served()
        if session is None:
            self.unserved += 1
            return Draft.empty()
        draft = session.draft(max_draft_tokens, timeout_seconds, after, suggested)
        self._asked += 1
        self._judge(session)
        return draft

    def close(self) -> None:
        self._closed = True
        session, member = self._session, self._member
        self._forget()
        if session is not None and member is not None:
            session.close()
            self._pool.release(member)

    def _served(self) -> WorkerSession | None:
        if self._session is None and not self._closed:
            member = self._pool.choose(len(self._text))
            if member is not None:
                self._settle_with(member)
        return self._session

    def _settle_with(self, member: Member) -> None:
        self._member = member
        self._session = member.worker.open_session(
            p_min=self._p_min, top_k=self._top_k, wait_seconds=self._wait_seconds
        )
        self._session.set_text(self._text)
        self.moves += self._served_before
        self._served_before = True

    def _judge(self, session: WorkerSession) -> None:
        """Stay with the worker, or look for another one."""
        member = self._member
        if member is None:
            return
        if session.broken:
            self._pool.report(member, session.last_error)
            self._forget()
            self._pool.release(member)
            self._pool.retire(session)
            return
        too_long = session.refused and isinstance(session.last_error, LimitExceededError)
        turned_away = session.troubles >= _TROUBLES and self._asked >= self._move_after
        if not (too_long or turned_away):
            return
        other = self._pool.choose(len(self._text), leaving=member)
        if other is not None:
            self._forget()
            self._pool.retire(session)
            self._settle_with(other)
            self._move_after = self._asked + _SETTLED

    def _forget(self) -> None:
        """Keep the counters of a session that ends."""
        session, self._session, self._member = self._session, None, None
        if session is not None:
            self._past[0] += session.late
            self._past[1] += session.busy
            self._past[2] += session.failures
            self._past_error = session.last_error or self._past_error
