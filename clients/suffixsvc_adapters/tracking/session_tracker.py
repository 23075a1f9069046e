"""Session tracker: sessions for engines that have none, identified by their tokens.

Most engines pass a drafter all token ids so far and nothing else: not the request that they belong to, not
the result of the last draft, not the end of a request. The tracker finds the sequence that the tokens
continue, sends its session the new ones only, and infers the rest:

    tokens passed    known state                what happens
    ─────────────    ───────────                ────────────
    p a b c          p a, drafted [b d]         step [b c] at 2: one of the two drafted tokens was accepted
    p a b q r s      p a, drafted [b d]         a new turn: b is output, q r s is context (with
                                                written=1, s is output)
    p a x            p a b c                    rewound, or another sequence: a new session
    z                nothing                    a new session

A sequence that was idle for a while, or that is evicted, is closed and its output stored. No error of a
backend reaches the engine: a failure is an empty draft, counted, and logged once.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from suffixsvc.errors import InvalidInputError, ProtocolError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import (
    BackendNamespace,
    BackendSession,
    Draft,
    DraftSource,
    TokenIds,
    Verified,
)
from suffixsvc.values import MAX_TOKEN_ID, as_token_array
from suffixsvc_adapters.tracking.async_close import SessionCloser
from suffixsvc_adapters.tracking.clean_draft import clean_draft
from suffixsvc_adapters.tracking.live_sequence import LiveSequence, View
from suffixsvc_adapters.tracking.sequence_table import SequenceTable
from suffixsvc_adapters.tracking.tracker_types import DraftRequest, TrackerConfig, TrackerStats
from suffixsvc_driver.drafts.tree import depths_of, follow

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: steps of many sessions in one message, as a client has it: (session, keyword arguments of its step)
StepMany = Callable[[Sequence[tuple[Any, dict[str, Any]]]], Sequence[Draft]]

#: queries of a failed sequence that are skipped before its session is opened again: failures must stay cheap
_QUERIES_TO_SKIP: Final = 64
#: how long close() waits for sessions to be stored
_CLOSE_TIMEOUT_SECONDS: Final = 60.0
#: interval at which the background thread calls ``is_over``
_IS_OVER_SECONDS: Final = 1.0
_NO_DRAFT: Final = Verified(1, 0)


class _Limits(NamedTuple):
    """Limits of a draft; the arguments of :func:`clean_draft`."""

    tokens: int
    vocab_size: int
    stop_before: frozenset[int]
    stop_after: frozenset[int]


class _Step(NamedTuple):
    """A prepared step of one session."""

    sequence: LiveSequence
    session: BackendSession
    new: TokenIds
    at: int  # position in the session
    verified: Verified | None
    limits: _Limits
    last: bool = False  # the sequence ends with this step


class SessionTracker(ClosedOnExit):
    """Drafts for sequences that are identified by their tokens. Thread-safe.

    Outputs are stored when their sequences end (:meth:`end`, ``DraftRequest.last``, ``is_over``,
    ``TrackerConfig.idle_seconds``), and when the tracker or the interpreter does.

    Args:
        namespace: of the embedded engine or of a client.
        step_many: a client's batched step; None: sessions are stepped one by one.
        clock: seconds, for idle times.
        on_close: called at the end of :meth:`close`, to close what was opened for this tracker.
        is_over: state of a hint in the engine, called with every draft and every second on a thread: True
            ends the sequence, False exempts it from ``idle_seconds`` and ``max_sequences``, None leaves it
            to them. It must be fast, thread-safe, and must not call the tracker; an error is counted and
            means None.
    """

    def __init__(
        self,
        namespace: BackendNamespace,
        config: TrackerConfig | None = None,
        *,
        step_many: StepMany | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_close: Callable[[], None] | None = None,
        is_over: Callable[[Hashable], bool | None] | None = None,
    ) -> None:
        self.config = config or TrackerConfig()
        self._namespace = namespace
        self._step_many = step_many
        self._on_close = on_close
        self._vocab_size = MAX_TOKEN_ID + 1 if self.config.vocab_size is None else self.config.vocab_size
        idle_seconds = self.config.idle_seconds
        guarded = None if is_over is None else self._guarded(is_over)
        self._table = SequenceTable(self.config.max_sequences, idle_seconds, clock, guarded)
        tick = idle_seconds / 2 if is_over is None else min(_IS_OVER_SECONDS, idle_seconds / 2)
        self._closer = SessionCloser(self._record_failure, self._close_idle, tick)
        self._counts_lock = threading.Lock()
        self._counts = dict.fromkeys(TrackerStats.__dataclass_fields__, 0)
        self._failure_logged = False
        self._closed = False
        atexit.register(self.close)

    # ------------------------------------------------------------------------------------------ drafting

    def draft(self, token_ids: TokenIds, **more: Any) -> Draft:
        """Draft a continuation of these tokens; ``more``: fields of :class:`DraftRequest`. Empty after any
        failure."""
        return self.draft_many([DraftRequest(token_ids, **more)])[0]

    def draft_many(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for several different sequences, in order; a client gets one message for all of them.

        The failure of one sequence empties its own draft only.
        """
        drafts = [Draft.empty()] * len(requests)
        if self._closed:
            return drafts
        self._close_idle()
        steps: dict[int, _Step] = {}
        try:
            for i, request in enumerate(requests):
                step = _attempt(self._prepare, request)
                if isinstance(step, Exception):
                    self._record_failure(step)
                elif step is not None:
                    steps[i] = step
            replies = self._step_all(list(steps.values()))
        except BaseException:  # an interrupt: which tokens were applied is unknown
            for step in steps.values():
                self._drop_session(step.sequence)
            raise
        for i, reply in zip(steps, replies, strict=True):
            drafts[i] = self._finish(steps[i], reply)
        return drafts

    def _prepare(self, request: DraftRequest) -> _Step | None:
        """Find or open the sequence and send its context. The sequence stays claimed until :meth:`_finish`,
        unless None is returned."""
        if request.start < 0:
            raise InvalidInputError("start must be an int >= 0", got=request.start)
        view = View(as_token_array(request.token_ids), request.start)
        limits = self._limits_of(request)
        written = max(0, min(request.written, len(view.token_ids)))
        self._count(asked=int(limits.tokens > 0))
        if not len(view.token_ids):
            return None
        sequence = self._table.claim(view, request.hint, request.hint_is_unique)
        if sequence is None:
            sequence = LiveSequence(view)
            self._close_sessions(self._table.insert(sequence, request.hint))
            self._closer.start()
        try:
            step = (
                self._open(sequence, view, written, limits)
                if sequence.session is None
                else self._advance(sequence, sequence.session, view, written, limits)
            )
            return None if step is None else step._replace(last=request.last)
        except BaseException:
            self._drop_session(sequence)
            raise

    def _limits_of(self, request: DraftRequest) -> _Limits:
        tokens, vocab_size = self.config.max_draft_tokens, self._vocab_size
        if request.last:
            tokens = 0
        elif request.max_draft_tokens is not None:
            tokens = max(0, min(tokens, request.max_draft_tokens))
        if request.vocab_size is not None:
            vocab_size = min(vocab_size, request.vocab_size)
        return _Limits(tokens, vocab_size, request.stop_before, request.stop_after)

    def _open(self, sequence: LiveSequence, view: View, written: int, limits: _Limits) -> _Step | None:
        sequence.append(view.tokens_from(sequence.end))
        if sequence.skip > 0:
            sequence.skip -= 1
            self._close_sessions(self._table.release(sequence))
            return None
        tokens = sequence.token_ids.copy()
        prompt_length = len(tokens) - written
        session = self._namespace.open_session(
            tokens[:prompt_length], labels=self.config.labels or None, reads=list(self.config.reads) or None
        )
        sequence.session = session
        self._count(opened=1)
        return _Step(sequence, session, tokens[prompt_length:], prompt_length, None, limits)

    def _advance(
        self, sequence: LiveSequence, session: BackendSession, view: View, written: int, limits: _Limits
    ) -> _Step:
        at, new, draft = sequence.end - sequence.origin, view.tokens_from(sequence.end), sequence.last_draft
        sequence.append(new)
        if not len(new):  # queried again before the last draft was verified
            return _Step(sequence, session, new, at, None, limits)
        parents = draft.parents.tolist()
        accepted = len(follow(draft.token_ids.tolist(), parents, new.tolist()))
        self._count(accepted=accepted)
        source = DraftSource(int(draft.sources[0])) if len(draft) else DraftSource.NONE
        verified = Verified(len(draft) + 1, accepted, source)
        output_start = len(new) - min(written, len(new) - accepted)
        if output_start == accepted or len(new) <= max(depths_of(parents), default=-1) + 2:
            return _Step(sequence, session, new, at, verified, limits)
        # More tokens than one step of the target can emit, and the engine does not vouch for all of them.
        self._count(turns=1)
        if accepted:
            session.step(new[:accepted], max_draft_tokens=0, at=at, verified=verified)
        session.append_context(new[accepted:output_start])
        return _Step(sequence, session, new[output_start:], at + output_start, _NO_DRAFT, limits)

    def _step_all(self, steps: list[_Step]) -> list[Draft | Exception]:
        calls = [
            (
                step.session,
                {
                    "new_token_ids": step.new,
                    "max_draft_tokens": step.limits.tokens,
                    "verify_cost": self.config.verify_cost,
                    "tree": self.config.tree,
                    "at": step.at,
                    "verified": step.verified,
                },
            )
            for step in steps
        ]
        step_many = self._step_many
        if step_many is None or len(steps) < 2:
            return [_attempt(session.step, **arguments) for session, arguments in calls]
        replies = _attempt(lambda: list(step_many(calls)))
        if not isinstance(replies, Exception) and len(replies) != len(steps):
            replies = ProtocolError("drafts must be one per step", expected=len(steps), got=len(replies))
        # if the message failed, so did all of its steps
        return [replies] * len(steps) if isinstance(replies, Exception) else [*replies]

    def _finish(self, step: _Step, reply: Draft | Exception) -> Draft:
        draft = reply
        if not isinstance(reply, Exception):  # what the backend returned may be no draft
            draft = _attempt(clean_draft, reply, *step.limits, tree=self.config.tree)
        if isinstance(draft, Exception):
            self._record_failure(draft)
            self._drop_session(step.sequence)
            return Draft.empty()
        step.sequence.last_draft = draft
        self._close_sessions(
            self._table.discard(step.sequence) if step.last else self._table.release(step.sequence)
        )
        self._count(answered=int(len(draft) > 0), drafted=len(draft))
        return draft

    # ------------------------------------------------------------------------------------------- closing

    def end(self, hint: Hashable) -> None:
        """End the sequence of a hint and store its output. Unknown hints are ignored.

        Raises:
            InvalidInputError: the hint is not hashable.
        """
        try:
            hash(hint)
        except TypeError:
            raise InvalidInputError("hint must be hashable", got=type(hint).__name__) from None
        self._close_sessions(self._table.remove(hint))

    def end_all(self) -> None:
        """End all sequences and store their outputs."""
        self._close_sessions(self._table.remove_all())

    def flush(self) -> None:
        """Wait until the outputs of all sequences that have ended are stored."""
        self._closer.wait_until_empty()

    def close(self) -> None:
        """End all sequences and wait, a minute at most, until their outputs are stored. Later drafts are
        empty. Idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._close_sessions(self._table.close())
        self._closer.stop(_CLOSE_TIMEOUT_SECONDS)
        if self._on_close is not None:
            self._on_close()

    def _close_idle(self) -> None:
        self._close_sessions(self._table.remove_idle())

    def _drop_session(self, sequence: LiveSequence) -> None:
        """Close a failed session, storing its output if possible, and release its sequence."""
        session, sequence.session = sequence.session, None
        sequence.last_draft = Draft.empty()
        sequence.skip = _QUERIES_TO_SKIP
        released = self._table.release(sequence)
        self._close_sessions([*released, *([session] if session is not None else [])])

    def _close_sessions(self, sessions: Sequence[BackendSession]) -> None:
        if sessions:
            self._count(closed=len(sessions))
            self._closer.put(sessions)

    # ------------------------------------------------------------------------------------------ counting

    @property
    def stats(self) -> TrackerStats:
        """A snapshot of the counters."""
        with self._counts_lock:
            return TrackerStats(**{**self._counts, "live": len(self._table)})

    def _count(self, **more: int) -> None:
        with self._counts_lock:
            for name, n in more.items():
                self._counts[name] += n

    def _guarded(self, is_over: Callable[[Hashable], bool | None]) -> Callable[[Hashable], bool | None]:
        def guarded(hint: Hashable) -> bool | None:
            try:
                over = is_over(hint)
                return None if over is None else bool(over)
            except Exception as error:  # an error of the engine must not fail its call for a draft
                self._record_failure(error)
                return None

        return guarded

    def _record_failure(self, error: Exception) -> None:
        with self._counts_lock:
            self._counts["failures"] += 1
            first, self._failure_logged = not self._failure_logged, True
        if first:
            _log.warning(
                "the suffix cache failed; the engine continues without drafts", error=repr(error)[:300]
            )


def _attempt(work: Callable[..., T], *arguments: Any, **more: Any) -> T | Exception:
    """Call ``work`` and return its error: an error of the cache or of one session must not reach the engine
    or the other sessions."""
    try:
        return work(*arguments, **more)
    except Exception as error:
        return error
