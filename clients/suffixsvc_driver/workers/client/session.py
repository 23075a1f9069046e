"""A session on one worker: mirrors which tokens the worker holds, sends the missing ones, bounds every wait.

The worker holds a prefix of the text, perhaps followed by drafted tokens that an earlier query continued:

    text     t0 t1 t2 t3 t4 t5 t6            held = 5
    worker   t0 t1 t2 t3 t4 | d0 d1          tail = d0 d1

Only the difference is sent. Tokens of the tail that the target accepts count as held once they are appended;
the rest is cut by the next request. A long missing piece (a new prompt) is sent ahead, without waiting for a
reply.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

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
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.workers.client.channel import WorkerChannel, WorkerReply, WorkerRequest
from suffixsvc_driver.workers.client.interface import SessionCounts

#: pause after a failure, doubling up to the second value
_BACKOFF_SECONDS: Final = (0.1, 30.0)
#: consecutive malformed replies after which the channel is closed
_MAX_MALFORMED: Final = 3
#: a larger number of missing tokens is sent ahead of the first query
_SEND_AHEAD_TOKENS: Final = 48
_FORGET_SECONDS: Final = 1.0
#: a request without a reply for this long, and for this multiple of the time that drafting its tokens one by
#: one would take, is lost
_LOST_SECONDS: Final = 10.0
_LOST_FACTOR: Final = 2.0


class WorkerSession(SessionCounts):
    """See :class:`~suffixsvc_driver.workers.client.interface.DraftSession`.

    Args:
        open_channel: starts a channel to the worker; never blocks.
        speed: returns the worker's seconds per drafted token.
        on_failure: called with every error that counts as a failure.
        counts: counters of the session that this one belongs to; None = its own.
        principal: see :meth:`~suffixsvc_driver.workers.client.interface.DraftWorker.open_session`.
        options: fields of every :class:`WorkerRequest`: ``p_min``, ``top_k``, ``wait_seconds``.

    Attributes:
        late, busy, failures, last_error: see the protocol.
        refused: the worker refused this text (too long, or invalid).
        failed_queries: consecutive queries without a valid reply: late, busy or failed.
    """

    def __init__(
        self,
        open_channel: Callable[[], WorkerChannel],
        speed: Callable[[], float],
        on_failure: Callable[[SuffixError], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        counts: SessionCounts | None = None,
        principal: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self._new_channel, self._speed, self._on_failure = open_channel, speed, on_failure
        self._clock = clock
        #: on the worker
        self.session_id = uuid.uuid4().hex
        self._principal = principal
        self._request = partial(WorkerRequest, session_id=self.session_id, principal=principal, **options)
        self._numbers = itertools.count(1)
        self._channel: WorkerChannel | None = None
        self._text: list[int] = []
        self._held = 0
        self._tail: list[int] = []
        # of the outstanding request: the text length and the tail that the worker will hold
        self._sent = 0
        self._sent_tail: list[int] = []
        self._sent_at = 0.0
        self._lost_after = 0.0
        self._ahead = False
        self.refused = False
        self._retry_at = 0.0
        self._backoff = _BACKOFF_SECONDS[0]
        self._counts: SessionCounts = self if counts is None else counts
        self.failed_queries = 0
        self.last_error: SuffixError | None = None

    @property
    def seconds_per_token(self) -> float:
        """See the protocol."""
        return self._speed()

    @property
    def broken(self) -> bool:
        """Whether the channel failed and the pause before the next attempt is not over."""
        return self._channel is None and self._retry_at > 0.0

    @property
    def reading(self) -> bool:
        """See the protocol."""
        return self._ahead and self._channel is not None and not self.refused

    def set_text(self, token_ids: Sequence[int]) -> None:
        """See the protocol."""
        text = list(token_ids)
        self._take_reply()
        agreed = common_prefix(self._text, text)
        if agreed < self._held:
            self._held, self._tail = agreed, []
        if agreed < self._sent:
            self._sent, self._sent_tail = agreed, []
        self._held, self._tail = _extend_held(self._held, self._tail, text)
        self._text = text
        self.refused = False

    def append(self, token_ids: Sequence[int]) -> None:
        """See the protocol."""
        self._text.extend(token_ids)
        self._held, self._tail = _extend_held(self._held, self._tail, self._text)

    def draft(
        self,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        """See the protocol."""
        channel = None if self.refused else self._ready()
        if channel is None:
            return Draft.empty()
        if len(self._text) - self._held > _SEND_AHEAD_TOKENS:
            self._send(channel, 0, 0.0)
            return Draft.empty()
        self._send(channel, max_draft_tokens, timeout_seconds, after, suggested)
        if not channel.wait(timeout_seconds):
            if channel.failed:
                self._drop(channel)
            else:
                self._record_late()
            return Draft.empty()
        return self._take_reply().head(max_draft_tokens)

    def close(self) -> None:
        """End the channel, and free the worker's KV unless it is left to a named principal."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        channel.take_reply()
        if not self._principal and not channel.failed and not channel.outstanding:
            channel.send(
                self._request(number=next(self._numbers), timeout_seconds=_FORGET_SECONDS, forget=True)
            )
            channel.wait(_FORGET_SECONDS)
        channel.close()

    def _ready(self) -> WorkerChannel | None:
        """Return the channel if a request can be sent now; opens one if there is none."""
        self._take_reply()
        if self._channel is not None and self._channel.failed:
            self._drop(self._channel)
        if self._channel is None:
            if self._clock() < self._retry_at:
                return None
            self._channel = self._new_channel()
            self._held, self._tail = 0, []
            self._retry_at = 0.0
        if self._channel.outstanding:
            self._on_outstanding(self._channel)
            return None
        return self._channel

    def _on_outstanding(self, channel: WorkerChannel) -> None:
        if self._clock() - self._sent_at > self._lost_after:
            self._record_failure(ServiceTimeoutError("a draft worker does not reply", got=self._lost_after))
            self._drop(channel)
        elif not self._ahead:  # text that is sent ahead has no reply to wait for
            self._record_late()
            channel.abandon()
            if channel.failed:
                self._drop(channel)

    def _drop(self, channel: WorkerChannel) -> None:
        """Close a failed channel and pause before the next one."""
        error = channel.error  # before end(), which makes a working channel fail too
        channel.end()
        self._channel = None
        self._held, self._tail = 0, []
        self._retry_at = self._clock() + self._backoff
        self._backoff = min(2 * self._backoff, _BACKOFF_SECONDS[1])
        if error is not None and not isinstance(error, ServiceTimeoutError):  # counted as late already
            self._record_failure(error)

    def _send(
        self,
        channel: WorkerChannel,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> None:
        tail = list(after)
        keep = self._held
        if keep == len(self._text):
            keep += common_prefix(self._tail, tail)
        self._sent, self._sent_tail = len(self._text), tail
        context = [*self._text, *tail] if tail else list(self._text)
        self._sent_at = self._clock()
        self._lost_after = max(_LOST_SECONDS, _LOST_FACTOR * (len(context) - keep) * self._speed())
        self._ahead = timeout_seconds == 0.0
        channel.send(
            self._request(
                number=next(self._numbers),
                timeout_seconds=timeout_seconds,
                context=context,
                keep=keep,
                max_draft_tokens=max_draft_tokens,
                suggested=tuple(suggested),
            )
        )

    def _take_reply(self) -> Draft:
        """Apply a reply that has arrived: update the mirror and return the draft."""
        reply = self._channel.take_reply() if self._channel is not None else None
        if reply is None:
            return Draft.empty()
        if reply.busy:
            self._counts.busy += 1
            self.failed_queries += 1
            self._backoff = _BACKOFF_SECONDS[0]
            return Draft.empty()
        if reply.error is not None:
            self._record_failure(reply.error)
            if not isinstance(reply.error, ProtocolError):
                self._on_refusal(reply.error)
            elif self._channel is not None and self.failed_queries >= _MAX_MALFORMED:
                self._drop(self._channel)
            return Draft.empty()
        self.failed_queries = 0
        self._backoff = _BACKOFF_SECONDS[0]
        self._update_held(reply)
        return reply.draft

    def _update_held(self, reply: WorkerReply) -> None:
        """Update the mirror; a length beyond the tokens that were sent is ignored."""
        length = max(0, reply.length)
        self._held = min(length, self._sent)
        self._tail = self._sent_tail[: max(0, length - self._sent)]
        self._held, self._tail = _extend_held(self._held, self._tail, self._text)

    def _on_refusal(self, error: SuffixError) -> None:
        self._held, self._tail = 0, []
        if isinstance(error, (UnknownSessionError, AppendGap)):
            return  # it lost the session; the next request sends the text again
        if isinstance(error, (InvalidInputError, LimitExceededError)):
            # a refused text is refused again, but a drafted tail is another one the next time
            self.refused = not self._sent_tail
        elif self._channel is not None:
            self._drop(self._channel)

    def _record_late(self) -> None:
        self._counts.late += 1
        self.failed_queries += 1

    def _record_failure(self, error: SuffixError) -> None:
        self._counts.failures += 1
        self.failed_queries += 1
        self.last_error = error
        self._on_failure(error)


def _extend_held(held: int, tail: list[int], text: Sequence[int]) -> tuple[int, list[int]]:
    """Return held length and tail after the text grew: tail tokens that agree with the text count as held."""
    if not tail or held == len(text):
        return held, tail
    agreed = common_prefix(tail, text[held : held + len(tail)])
    held += agreed
    return held, tail[agreed:] if held == len(text) else []
