"""Sessions for engines that have none: recognises sequences by what stands in them.

Most engines hand a drafter all token ids so far and say nothing else: not which request they belong to, not
what became of the last draft, never that a request is over. The tracker finds the sequence that these tokens
continue, tells its session the new ones only, and works out the rest:

    shown            what is known              what happens
    ─────            ─────────────              ────────────
    p a b c          p a, drafted [b d]         step [b c] at 2: one of the two drafted tokens came true
    p a b q r s      p a, drafted [b d]         a new turn: b was written, q r is context, s was written
    p a x            p a b c                    rewound, or another sequence: a new session
    z                nothing                    a new session

A sequence that nobody asked about for a while, or that must make room, is closed and what it wrote is kept.
Nothing in here raises for a backend's sake: a failure is an empty draft, counted, logged once.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import structlog

from suffixsvc.errors import InvalidInputError, ProtocolError
from suffixsvc.types import (
    BackendNamespace,
    BackendSession,
    Draft,
    DraftSource,
    TokenIds,
    Verified,
)
from suffixsvc.values import MAX_TOKEN_ID, as_token_array
from suffixsvc_driver.adapters.clean_draft import clean_draft
from suffixsvc_driver.adapters.closing import SessionCloser
from suffixsvc_driver.adapters.live_sequence import LiveSequence, View, longest_path, tokens_that_came_true
from suffixsvc_driver.adapters.live_table import LiveTable
from suffixsvc_driver.adapters.tracker_types import Asked, TrackerConfig, TrackerStats

__all__ = ["SessionTracker", "StepMany"]

_log = structlog.get_logger(__name__)

#: steps of many sessions in one message, as a client has it: (session, keyword arguments of its step)
StepMany = Callable[[Sequence[tuple[Any, dict[str, Any]]]], Sequence[Draft]]

#: questions about a sequence whose session failed until one is opened again: refusals must stay cheap
_QUESTIONS_TO_SKIP: Final = 64
#: how long close() waits for sessions that are being kept
_PATIENCE_SECONDS: Final = 60.0
#: how often the thread asks the engine which sequences are over
_IS_OVER_SECONDS: Final = 1.0
_NOTHING_SENT: Final = Verified(1, 0)


class _Limits(NamedTuple):
    """What a draft has to keep to."""

    tokens: int
    vocab_size: int
    stop_before: frozenset[int]
    stop_after: frozenset[int]


class _Job(NamedTuple):
    """A step that is about to be taken."""

    sequence: LiveSequence
    session: BackendSession
    new: TokenIds
    at: int  # in the session
    verified: Verified | None
    limits: _Limits
    last: bool = False  # the sequence ends with this step


class SessionTracker:
    """Drafts for sequences that are told apart by their tokens. Thread-safe.

    Args:
        namespace: of the embedded engine or of a client.
        step_many: how a client takes the steps of many sessions at once; None: one by one.
        clock: seconds, for what is idle.
        on_close: called at the end of :meth:`close`, to close what was opened for this tracker.
        is_over: whether the engine is done with a hint, asked with every draft and every second by a thread:
            True ends the sequence, False spares it from ``idle_seconds`` and ``max_sequences``, None leaves
            it to them. It must be fast, thread-safe, and must not call the tracker; what it raises is
            counted, and means None.

    What the sequences wrote is kept when they end (:meth:`end`, ``Asked.last``, ``is_over``,
    ``TrackerConfig.idle_seconds``), and when the tracker or the interpreter does.
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
        self._table = LiveTable(self.config.max_sequences, idle_seconds, clock, guarded)
        tick = idle_seconds / 2 if is_over is None else min(_IS_OVER_SECONDS, idle_seconds / 2)
        self._closer = SessionCloser(self._failed, self._end_idle, tick)
        self._counting = threading.Lock()
        self._counts = dict.fromkeys(TrackerStats.__dataclass_fields__, 0)
        self._complained = False
        self._closed = False
        atexit.register(self.close)

    # ------------------------------------------------------------------------------------------ drafting

    def draft(
        self,
        token_ids: TokenIds,
        *,
        start: int = 0,
        hint: Hashable = None,
        written: int = 0,
        max_draft_tokens: int | None = None,
        vocab_size: int | None = None,
        stop_before: frozenset[int] = frozenset(),
    ) -> Draft:
        """What comes after these tokens; see :class:`Asked`. Empty whenever something goes wrong."""
        asked = Asked(
            token_ids,
            start,
            hint,
            written=written,
            max_draft_tokens=max_draft_tokens,
            vocab_size=vocab_size,
            stop_before=stop_before,
        )
        return self.draft_many([asked])[0]

    def draft_many(self, asked: Sequence[Asked]) -> list[Draft]:
        """A draft for each of different sequences, in order; a client gets one message for all of them.

        The trouble of one empties its own draft only.
        """
        drafts = [Draft.empty()] * len(asked)
        if self._closed:
            return drafts
        self._end_idle()
        jobs: dict[int, _Job] = {}
        try:
            for i, one in enumerate(asked):
                job = self._prepared(one)
                if job is not None:
                    jobs[i] = job
            answers = self._take(list(jobs.values()))
        except BaseException:  # an interrupt: nobody knows what was applied
            for job in jobs.values():
                self._give_up(job.sequence)
            raise
        for i, answer in zip(jobs, answers, strict=True):
            drafts[i] = self._finish(jobs[i], answer)
        return drafts

    def _prepared(self, asked: Asked) -> _Job | None:
        try:
            return self._prepare(asked)
        except Exception as error:  # who asks for a draft must not hear of it
            self._failed(error)
            return None

    def _prepare(self, asked: Asked) -> _Job | None:
        """Find or open the sequence, tell its session what its model did not write. It is claimed from here
        to :meth:`_finish`, unless there is no job."""
        if asked.start < 0:
            raise InvalidInputError("start is no position", expected="an int >= 0", got=asked.start)
        view = View(as_token_array(asked.token_ids), asked.start)
        limits = self._limits_of(asked)
        written = max(0, min(asked.written, len(view.token_ids)))
        self._count(asked=int(limits.tokens > 0))
        if not len(view.token_ids):
            return None
        sequence = self._table.claim(view, asked.hint, asked.named)
        if sequence is None:
            sequence = LiveSequence(view)
            self._close_sessions(self._table.enter(sequence, asked.hint))
            self._closer.start()
        try:
            job = (
                self._begin(sequence, view, written, limits)
                if sequence.session is None
                else self._go_on(sequence, sequence.session, view, written, limits)
            )
            return None if job is None else job._replace(last=asked.last)
        except BaseException:
            self._give_up(sequence)
            raise

    def _limits_of(self, asked: Asked) -> _Limits:
        tokens, vocab_size = self.config.max_draft_tokens, self._vocab_size
        if asked.last:
            tokens = 0
        elif asked.max_draft_tokens is not None:
            tokens = max(0, min(tokens, asked.max_draft_tokens))
        if asked.vocab_size is not None:
            vocab_size = min(vocab_size, asked.vocab_size)
        return _Limits(tokens, vocab_size, asked.stop_before, asked.stop_after)

    def _begin(self, sequence: LiveSequence, view: View, written: int, limits: _Limits) -> _Job | None:
        sequence.append(view.behind(sequence.end))
        if sequence.skip > 0:
            sequence.skip -= 1
            self._release(sequence)
            return None
        whole = sequence.token_ids.copy()
        own = len(whole) - written
        session = self._namespace.open_session(
            whole[:own], labels=self.config.labels or None, reads=list(self.config.reads) or None
        )
        sequence.session = session
        self._count(opened=1)
        return _Job(sequence, session, whole[own:], own, None, limits)

    def _go_on(
        self, sequence: LiveSequence, session: BackendSession, view: View, written: int, limits: _Limits
    ) -> _Job:
        at, new, sent = sequence.end - sequence.origin, view.behind(sequence.end), sequence.handed_out
        sequence.append(new)
        if not len(new):  # asked again, before anything came of the last draft
            return _Job(sequence, session, new, at, None, limits)
        accepted = tokens_that_came_true(sent, new)
        self._count(accepted=accepted)
        source = DraftSource(int(sent.sources[0])) if len(sent) else DraftSource.NONE
        verified = Verified(len(sent) + 1, accepted, source)
        own = len(new) - min(written, len(new) - accepted)
        if own == accepted or len(new) <= longest_path(sent) + 1:
            return _Job(sequence, session, new, at, verified, limits)
        # More than one step of the target can have written, and some of it nobody answers for.
        self._count(turns=1)
        if accepted:
            session.step(new[:accepted], max_draft_tokens=0, at=at, verified=verified)
        session.append_context(new[accepted:own])
        return _Job(sequence, session, new[own:], at + own, _NOTHING_SENT, limits)

    def _take(self, jobs: list[_Job]) -> list[Draft | Exception]:
        steps = [
            (
                job.session,
                {
                    "new_token_ids": job.new,
                    "max_draft_tokens": job.limits.tokens,
                    "verify_cost": self.config.verify_cost,
                    "tree": self.config.tree,
                    "at": job.at,
                    "verified": job.verified,
                },
            )
            for job in jobs
        ]
        if self._step_many is None or len(jobs) < 2:
            return [_answer_of(session, arguments) for session, arguments in steps]
        try:
            answers: list[Draft | Exception] = list(self._step_many(steps))
        except Exception as error:  # all of them are lost with it
            return [error] * len(jobs)
        if len(answers) != len(jobs):
            return [ProtocolError("not a draft a step", expected=len(jobs), got=len(answers))] * len(jobs)
        return answers

    def _finish(self, job: _Job, answer: Draft | Exception) -> Draft:
        draft = answer if isinstance(answer, Exception) else self._cleaned(answer, job.limits)
        if isinstance(draft, Exception):
            self._failed(draft)
            self._give_up(job.sequence)
            return Draft.empty()
        job.sequence.handed_out = draft
        self._close_sessions(
            self._table.discard(job.sequence) if job.last else self._table.release(job.sequence)
        )
        self._count(answered=int(len(draft) > 0), drafted=len(draft))
        return draft

    def _cleaned(self, draft: Draft, limits: _Limits) -> Draft | Exception:
        try:
            return clean_draft(draft, *limits, tree=self.config.tree)
        except Exception as error:  # not even arrays
            return error

    # -------------------------------------------------------------------------------------------- its end

    def end(self, hint: Hashable) -> None:
        """The engine says that this sequence is over: what it wrote is kept. Unknown names are ignored.

        Raises:
            InvalidInputError: the hint is not hashable.
        """
        try:
            hash(hint)
        except TypeError:
            raise InvalidInputError("hint must be hashable", got=type(hint).__name__) from None
        self._close_sessions(self._table.drop(hint))

    def end_all(self) -> None:
        """All sequences are over."""
        self._close_sessions(self._table.drop_all())

    def settle(self) -> None:
        """Return when the outputs of everything that ended so far are kept."""
        self._closer.wait_until_empty()

    def close(self) -> None:
        """End all sequences and wait, a minute at most, until what they wrote is kept. Drafts are empty then.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._close_sessions(self._table.seal())
        self._closer.stop(_PATIENCE_SECONDS)
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_idle(self) -> None:
        self._close_sessions(self._table.drop_idle())

    def _release(self, sequence: LiveSequence) -> None:
        self._close_sessions(self._table.release(sequence))

    def _give_up(self, sequence: LiveSequence) -> None:
        """Its session failed: what it holds is kept if that is possible, and opening again waits."""
        session, sequence.session = sequence.session, None
        sequence.handed_out = Draft.empty()
        sequence.skip = _QUESTIONS_TO_SKIP
        self._release(sequence)
        if session is not None:
            self._close_sessions([session])

    def _close_sessions(self, sessions: Sequence[BackendSession]) -> None:
        if sessions:
            self._count(closed=len(sessions))
            self._closer.put(sessions)

    # ------------------------------------------------------------------------------------------- counting

    @property
    def stats(self) -> TrackerStats:
        """What was counted so far."""
        with self._counting:
            return TrackerStats(**{**self._counts, "live": len(self._table)})

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, n in more.items():
                self._counts[name] += n

    def _guarded(self, is_over: Callable[[Hashable], bool | None]) -> Callable[[Hashable], bool | None]:
        def ask(hint: Hashable) -> bool | None:
            try:
                over = is_over(hint)
                return None if over is None else bool(over)
            except Exception as error:  # of the engine: who asks for a draft must not hear of it
                self._failed(error)
                return None

        return ask

    def _failed(self, error: Exception) -> None:
        with self._counting:
            self._counts["failures"] += 1
            first, self._complained = not self._complained, True
        if first:
            _log.warning("the suffix cache failed; the engine goes on without", error=repr(error)[:300])


def _answer_of(session: BackendSession, arguments: dict[str, Any]) -> Draft | Exception:
    try:
        return session.step(**arguments)
    except Exception as error:  # of one session: the others never notice
        return error
