"""One context on a worker: what it holds, what it lacks, and a timer.

What the worker holds is a prefix of the text, perhaps with drafted tokens behind it that it was asked to go
on from:

    text     t0 t1 t2 t3 t4 t5 t6            held = 5
    worker   t0 t1 t2 t3 t4 | d0 d1          tail = d0 d1

Only what differs travels. Tokens of the tail that the target accepts become part of what is held when they
are appended; the rest is cut with the next question. A long missing piece (a new prompt) is sent ahead
without waiting for it.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from suffixsvc.errors import (
    AppendGap,
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    ServiceTimeoutError,
    SuffixError,
    UnknownSessionError,
)
from suffixsvc.types import Draft
from suffixsvc_driver.chain import common_prefix
from suffixsvc_driver.workers.exchange import Answer, Exchange, Question

__all__ = ["WorkerSession"]

#: after a failure the worker is left alone for so long, doubling up to the second value
_BACKOFF_SECONDS: Final = (0.1, 30.0)
#: so many answers in a row that make no sense, and it counts as a failure of the worker
_NONSENSE_IN_A_ROW: Final = 3
#: more missing tokens than this are sent ahead of the first question
_SENT_AHEAD: Final = 48
_FORGET_SECONDS: Final = 1.0
#: a question without an answer for so long, and for so many times what reading its tokens one by one would
#: take, was lost
_HUNG_SECONDS: Final = 10.0
_HUNG_SLACK: Final = 2.0


class WorkerSession:
    """See :class:`~suffixsvc_driver.workers.interface.DraftingSession`.

    Args:
        converse: starts a conversation with the worker; never blocks.
        speed: seconds a token takes the worker.
        on_failure: told of everything that counts as a failure.

    Attributes:
        late, busy, failures, last_error: see the protocol.
        troubles: questions in a row without a proper answer: late, busy or broken.
    """

    def __init__(
        self,
        converse: Callable[[], Exchange],
        speed: Callable[[], float],
        on_failure: Callable[[SuffixError], None],
        *,
        p_min: float = 0.4,
        top_k: int = 10,
        wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._converse, self._speed, self._on_failure = converse, speed, on_failure
        self._p_min, self._top_k, self._wait_seconds = p_min, top_k, wait_seconds
        self._clock = clock
        self._id = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._exchange: Exchange | None = None
        self._text: list[int] = []
        self._held = 0
        self._tail: list[int] = []
        # of the question under way: how much of the text, and what behind it, the worker will hold
        self._sent = 0
        self._sent_tail: list[int] = []
        self._sent_at = 0.0
        self._patience = 0.0
        self._ahead = False
        self._refused = False
        self._retry_at = 0.0
        self._backoff = _BACKOFF_SECONDS[0]
        self.late = 0
        self.busy = 0
        self.failures = 0
        self.troubles = 0
        self.last_error: SuffixError | None = None

    @property
    def seconds_per_token(self) -> float:
        return self._speed()

    @property
    def broken(self) -> bool:
        """There is no conversation: it failed, and it is not time yet to try again."""
        return self._exchange is None and self._retry_at > 0.0

    @property
    def reading(self) -> bool:
        """See the protocol."""
        return self._ahead and self._exchange is not None and not self._refused

    @property
    def refused(self) -> bool:
        """The worker will not take this text."""
        return self._refused

    def set_text(self, token_ids: Sequence[int]) -> None:
        text = list(token_ids)
        self._settle()
        agreed = common_prefix(self._text, text)
        if agreed < self._held:
            self._held, self._tail = agreed, []
        if agreed < self._sent:
            self._sent, self._sent_tail = agreed, []
        self._held, self._tail = _grown(self._held, self._tail, text)
        self._text = text
        self._refused = False

    def append(self, token_ids: Sequence[int]) -> None:
        self._text.extend(token_ids)
        self._held, self._tail = _grown(self._held, self._tail, self._text)

    def draft(
        self,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        if self._refused or not self._ready():
            return Draft.empty()
        if len(self._text) - self._held > _SENT_AHEAD:
            self._send(0, 0.0)
            return Draft.empty()
        exchange = self._send(max_draft_tokens, timeout_seconds, after, suggested)
        if not exchange.wait(timeout_seconds):
            if exchange.failed:
                self._drop(exchange)
            else:
                self._note_late()
            return Draft.empty()
        return _at_most(self._settle(), max_draft_tokens)

    def close(self) -> None:
        """Free the worker's KV and end the conversation."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.take_answer()
        if not exchange.failed and not exchange.outstanding:
            exchange.send(self._question([], 0, 0, _FORGET_SECONDS, forget=True))
            exchange.wait(_FORGET_SECONDS)
        exchange.close()

    def _ready(self) -> bool:
        """Can a question go out now? Starts a conversation where there is none."""
        self._settle()
        if self._exchange is not None and self._exchange.failed:
            self._drop(self._exchange)
        if self._exchange is None:
            if self._clock() < self._retry_at:
                return False
            self._exchange = self._converse()
            self._held, self._tail = 0, []
            self._retry_at = 0.0
        if self._exchange.outstanding:
            self._on_outstanding(self._exchange)
            return False
        return True

    def _on_outstanding(self, exchange: Exchange) -> None:
        if self._clock() - self._sent_at > self._patience:
            self._note_failure(ServiceTimeoutError("a draft worker does not answer", got=self._patience))
            self._drop(exchange)
        elif not self._ahead:  # nobody waits for what was sent ahead
            self._note_late()
            exchange.give_up()
            if exchange.failed:
                self._drop(exchange)

    def _drop(self, exchange: Exchange) -> None:
        """The conversation has failed: leave the worker alone for a while."""
        exchange.end()
        self._exchange = None
        self._held, self._tail = 0, []
        self._retry_at = self._clock() + self._backoff
        self._backoff = min(2 * self._backoff, _BACKOFF_SECONDS[1])
        error = exchange.error
        if error is not None and not isinstance(error, ServiceTimeoutError):  # counted as late already
            self._note_failure(error)

    def _send(
        self,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Exchange:
        exchange = self._exchange
        if exchange is None:
            raise SuffixError("no conversation to ask in")  # pragma: no cover - _ready() has made one
        tail = list(after)
        keep = self._held
        if keep == len(self._text):
            keep += common_prefix(self._tail, tail)
        self._sent, self._sent_tail = len(self._text), tail
        context = [*self._text, *tail] if tail else list(self._text)
        self._sent_at = self._clock()
        self._patience = max(_HUNG_SECONDS, _HUNG_SLACK * (len(context) - keep) * self._speed())
        self._ahead = timeout_seconds == 0.0
        told = tuple(suggested)
        exchange.send(self._question(context, keep, max_draft_tokens, timeout_seconds, suggested=told))
        return exchange

    def _question(
        self,
        context: list[int],
        keep: int,
        max_draft_tokens: int,
        seconds: float,
        *,
        forget: bool = False,
        suggested: tuple[int, ...] = (),
    ) -> Question:
        return Question(
            next(self._numbers),
            self._id,
            context,
            keep,
            max_draft_tokens,
            self._p_min,
            self._top_k,
            self._wait_seconds,
            seconds,
            forget,
            suggested,
        )

    def _settle(self) -> Draft:
        """Take an answer that has come: what the worker holds now, and its draft."""
        answer = self._exchange.take_answer() if self._exchange is not None else None
        if answer is None:
            return Draft.empty()
        if answer.busy:
            self.busy += 1
            self.troubles += 1
            self._backoff = _BACKOFF_SECONDS[0]
            return Draft.empty()
        if answer.error is not None:
            self._note_failure(answer.error)
            if not isinstance(answer.error, ProtocolError):
                self._on_refusal(answer.error)
            elif self._exchange is not None and self.troubles >= _NONSENSE_IN_A_ROW:
                self._drop(self._exchange)
            return Draft.empty()
        self.troubles = 0
        self._backoff = _BACKOFF_SECONDS[0]
        self._note_held(answer)
        return answer.draft

    def _note_held(self, answer: Answer) -> None:
        """Hostile or not: what it claims to hold beyond what was sent is nothing we could keep."""
        length = max(0, answer.length)
        self._held = min(length, self._sent)
        self._tail = self._sent_tail[: max(0, length - self._sent)]
        self._held, self._tail = _grown(self._held, self._tail, self._text)

    def _on_refusal(self, error: SuffixError) -> None:
        self._held, self._tail = 0, []
        if isinstance(error, (UnknownSessionError, AppendGap)):
            return  # it lost the session, and can be told again
        if isinstance(error, (InvalidInputError, LimitExceededError)):
            # what is wrong with this text stays wrong; a drafted tail is another one the next time
            self._refused = not self._sent_tail
        elif self._exchange is not None:
            self._drop(self._exchange)

    def _note_late(self) -> None:
        self.late += 1
        self.troubles += 1

    def _note_failure(self, error: SuffixError) -> None:
        self.failures += 1
        self.troubles += 1
        self.last_error = error
        self._on_failure(error)


def _grown(held: int, tail: list[int], text: Sequence[int]) -> tuple[int, list[int]]:
    """The same held tokens after the text went on: those of the tail that it agrees with are text now."""
    if not tail or held == len(text):
        return held, tail
    agreed = common_prefix(tail, text[held : held + len(tail)])
    held += agreed
    return held, tail[agreed:] if held == len(text) else []


def _at_most(draft: Draft, count: int) -> Draft:
    """The first tokens of a draft: parents come before their children, so any prefix is a draft."""
    if len(draft) <= count:
        return draft
    return Draft(
        draft.token_ids[:count],
        draft.parents[:count],
        draft.probs[:count],
        draft.sources[:count],
        draft.match_lens[:count],
    )
