"""One generation that appends what its model writes and asks for drafts."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS, Limits
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    InvalidInputError,
    LimitExceededError,
    SessionClosedError,
    SuffixError,
)
from suffixsvc.index.commitment import Commit, Commitment
from suffixsvc.index.identity import continues, output_uuid
from suffixsvc.index.namespace import NamespaceIndex, require_ngram_length
from suffixsvc.index.terms import TermsMemo
from suffixsvc.index.texts import next_writer
from suffixsvc.interrupts import uninterrupted
from suffixsvc.types import Draft, Labels, NewOutput, OutputId, TokenArray, TokenIds, Verified, VerifyCost
from suffixsvc.values import as_cost_curve, as_token_array, as_verified, not_tokens

__all__ = ["Abandoned", "Plan", "Session", "step_together"]

log = structlog.get_logger(__name__)

#: sessions that were collected before they were closed: their texts and namespaces
Abandoned = deque[tuple[Commitment, NamespaceIndex]]
#: called with how many tokens of context and of output are to be appended at once; what it returns is to be
#: called when they are there, or will not be. LimitExceededError: there is no memory for them
Admit = Callable[[int, int], Callable[[], object]]
#: a step that the core takes: see steps_binding.cpp
Plan = tuple[core.Stepper, bytes, int, int, core.Curve, bool, int, int, str, int]

_NOT_TAKEN: Final = RuntimeError("the step was not taken")
#: as good as any position beyond every text, and an int64
_FAR = 1 << 62


class Session:
    """A live session of the embedded engine; made by ``Namespace.open_session``.

    Steps of one session take turns; sessions of one namespace run concurrently. Everything a session
    writes can be drafted from by its siblings at once, until ``close(commit=False)`` retracts it.
    """

    def __init__(
        self,
        namespace: NamespaceIndex,
        reads: Sequence[NamespaceIndex],
        prompt: TokenArray,
        output: TokenArray,
        *,
        labels: Labels,
        limits: Limits,
        commit: Commit,
        on_close: Callable[[NewOutput | None], None],
        abandoned: Abandoned,
        admit: Admit = lambda context, output: _nothing,
    ) -> None:
        self._namespace = namespace
        self._read = list(reads)  # they are there as long as they are read
        self._reads = [r.index for r in reads]
        self._labels = dict(labels)
        self._limits = limits
        self._on_close = on_close
        self._admit = admit
        self._lock = threading.Lock()
        self._closed = False
        self._output_id: OutputId | None = None
        self._terms = TermsMemo(limits.max_draft_tokens)
        writer = next_writer()
        self._native = core.Session(
            namespace.index, self._reads, namespace.learner, writer, PROMPT_TAIL_TOKENS
        )
        self._commitment = Commitment(namespace, self._native, writer, commit)
        self._stepper = core.Stepper(self._native, namespace.counters, limits.max_session_tokens)
        self._require_room(len(prompt) + len(output))
        namespace.enter(self._commitment)  # before its text is in the index: a deletion finds it
        try:
            self._native.append_context(prompt)
            if len(output):
                self._native.append(output, False)
        except BaseException:
            self._commitment.release()
            namespace.leave(self._commitment)
            raise
        # A collector may run this anywhere, also where locks are held: it only leaves a note.
        self._finalizer = weakref.finalize(self, abandoned.append, (self._commitment, namespace))
        self._finalizer.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; what was written is kept unless the block failed."""
        self.close(commit=kind is None)

    # ------------------------------------------------------------------------------------ a decode step

    def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Draft:
        """Append what the model really wrote since the last call, learn from it, and draft again.

        Args:
            new_token_ids: accepted tokens and the bonus token, int32[n] or a sequence of ints.
            max_draft_tokens: at most so many; 0 only appends. Clamped to the engine's limit.
            verify_cost: a float a (each drafted token costs the target a plain decode steps) or a curve
                c, c[w] the relative cost of a step of w tokens (c[1] = 1, c[0] unused).
            tree: True drafts a tree, "auto" decides by cost.
            at: absolute position (prompt included) of new_token_ids[0]; None = next.
            verified: what was really sent to the target last step; None = our own last draft, whole.

        Raises:
            InvalidTokensError, InvalidCostError, InvalidInputError: nothing was applied.
            AppendConflict: ``at`` overlaps tokens that differ; AppendGap: it leaves tokens out.
            SessionClosedError, LimitExceededError.
        """
        tokens = as_token_array(new_token_ids, "new_token_ids", checked=False)
        width, curve, as_a_tree = self._terms.of(max_draft_tokens, verify_cost, tree)
        sent, accepted = (0, 0) if verified is None else _told(verified)
        place = -1 if at is None else _position(at)
        release = self._admit_step(len(tokens))
        try:
            answer = self._stepper.step(
                tokens, place, width, curve, as_a_tree, sent, accepted, core.WIRE_SOURCES
            )
        finally:
            release()
        if answer is None:
            return Draft.empty()
        if isinstance(answer, core.Refusal):
            raise self._refused(answer, at, tokens.tobytes())
        return Draft(*answer)

    def plan(
        self,
        token_bytes: bytes,
        at: int | None,
        max_draft_tokens: int,
        verify_cost: VerifyCost,
        tree: bool | str,
        verified: tuple[int, int] | None,
        session_id: str,
        seq: int,
    ) -> Plan:
        """A step to be taken by :func:`step_together`, its answer meant for the wire.

        Args:
            token_bytes: packed little-endian int32; checked when the step is taken.
            verified: (width, accepted), checked.
            session_id, seq: what the answer is addressed with.
            The rest as for :meth:`step`.

        Raises:
            InvalidCostError, InvalidInputError.
        """
        width, curve, as_a_tree = self._terms.of(max_draft_tokens, verify_cost, tree)
        sent, accepted = verified or (0, 0)
        place = -1 if at is None else min(at, _FAR)
        return self._stepper, token_bytes, place, width, curve, as_a_tree, sent, accepted, session_id, seq

    def append_context(self, token_ids: TokenIds) -> None:
        """Append tokens the model did not write: tool results, the next user turn."""
        tokens = as_token_array(token_ids)
        with self._lock:
            self._require_open()
            self._require_room(len(tokens))
            release = self._admit(len(tokens), 0)
            try:
                self._native.append_context(tokens)
            finally:
                release()
            self._stepper.forget_draft()

    def draft_after(
        self,
        context: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        bounds: core.DraftBounds = core.UNBOUNDED,
    ) -> Draft:
        """Draft what follows ``context``, the end of this session's text or another text.

        For engines that hand in what to match instead of telling what was written. Another text is indexed
        behind this session's own for the one draft, which takes as long as opening a session of that length;
        where its beginning is the end of this session's text, it continues it.

        Args:
            bounds: what the draft must keep to whatever it costs.

        Raises:
            What :meth:`step` raises.
        """
        tokens = as_token_array(context, "context", checked=False)
        width, curve, as_a_tree = self._terms.of(max_draft_tokens, verify_cost, tree)
        answer = self._stepper.draft_after(tokens, width, curve, as_a_tree, bounds, core.WIRE_SOURCES)
        if answer is None:
            return Draft.empty()
        if not isinstance(answer, core.Refusal):
            return Draft(*answer)
        if answer.status != core.StepStatus.ELSEWHERE:
            raise self._refused(answer, None, b"")
        tokens = as_token_array(tokens, "context")
        with self._lock:
            self._require_open()
            self._require_room(len(tokens))
            text = self.token_ids()
            scratch = core.Session(
                None, [self._namespace.index, *self._reads], self._namespace.learner, next_writer(), 0
            )
            scratch.append_context(np.concatenate([text, tokens[_overlap(text, tokens) :]]))
            self._stepper.forget_draft()
            costs = as_cost_curve(verify_cost, width)
            return core.draft_from(scratch, width, costs, tree=as_a_tree, bounds=bounds)

    def forget_draft(self) -> None:
        """The last draft was not sent to the target: what comes next says nothing about it."""
        self._stepper.forget_draft()

    def retract(self) -> None:
        """Take what this session wrote back from its siblings, for good: what it writes from now on is seen
        by itself only, and closing keeps nothing. Idempotent."""
        with self._lock:
            self._require_open()
            self._commitment.retract()

    def sit(self, seat: core.Seat, verify_cost: VerifyCost) -> None:
        """Let a desk take this session's steps from now on. The seat's turn is held."""
        seat.set_cost(self.whole_curve(verify_cost))
        seat.sit(self._stepper)

    def whole_curve(self, verify_cost: VerifyCost) -> core.Curve:
        """A cost as the core takes it, to the longest draft the engine makes. InvalidCostError."""
        return self._terms.of(self._limits.max_draft_tokens, verify_cost, False)[1]

    # --------------------------------------------------------------------------------------- its end

    def close(
        self, commit: bool = True, *, incomplete: bool = False, wait: bool = True, session_id: str = ""
    ) -> OutputId | None:
        """End the session: keep what it wrote, or (``commit=False``) retract it.

        Args:
            incomplete: mark the output as one whose model had not finished.
            wait: return after the output is durable. False returns None at once.
            session_id: kept with the output. The same text closed again under the same id, in a later session
                too, is the same output, and is not stored twice.

        Returns:
            The output's id; None when nothing was written or it was retracted, ``commit=False`` or
            ``wait=False``, when the limits leave no room for the output (``stats().refused_outputs`` counts
            them: a limit is never an error of the generation that meets it), and when its namespace was
            deleted. A second call returns the same.

        Raises:
            StoreError: the output could not be stored; the session stays open.
        """
        with self._lock:
            if self._closed:
                return self._output_id
            self._stepper.set_closed(True)
            try:
                return self._close(commit, incomplete=incomplete, wait=wait, session_id=session_id)
            finally:
                self._stepper.set_closed(self._closed or self._commitment.made is not None)

    def _close(self, commit: bool, *, incomplete: bool, wait: bool, session_id: str) -> OutputId | None:
        if self._commitment.made is None:
            written = (
                self._output(incomplete, session_id) if commit and not self._commitment.retracted else None
            )
            if written is not None:
                uninterrupted(lambda: self._commitment.begin(written))
        made = self._commitment.made
        if made is not None and wait:
            self._output_id = self._commitment.wait()
        elif made is not None:
            made[1].add_done_callback(_log_failure)
        uninterrupted(lambda: self._end(made[0] if made is not None and wait else None))
        return self._output_id

    def _end(self, kept: NewOutput | None) -> None:
        """``kept``: what is in the log of it."""
        self._commitment.release()
        self._closed = True
        self._native.end()
        self._finalizer.detach()
        self._namespace.leave(self._commitment)
        self._on_close(kept)

    @property
    def length(self) -> int:
        """Tokens so far: prompt, context and output. Where the next append starts."""
        return len(self._native)

    @property
    def has_output(self) -> bool:
        return bool(self._written_runs())

    @property
    def closed(self) -> bool:
        return self._closed

    def token_ids(self) -> TokenArray:
        """Everything so far, int32[length]."""
        return self._native.text(0, len(self._native))

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams of the session's own text, prompt included: int32[m, n] and counts uint64[m]."""
        tokens, counts = self._native.ngrams(require_ngram_length(n))
        return tokens.reshape(-1, n), counts

    # -------------------------------------------------------------------------------------- internal

    def _refused(self, refusal: core.Refusal, at: int | None, token_bytes: bytes) -> SuffixError:
        """Why a step of such tokens was not taken."""
        match refusal.status:
            case core.StepStatus.NOT_TOKENS:
                return not_tokens(token_bytes, "new_token_ids")
            case core.StepStatus.CLOSED:
                return _closed_error()
            case core.StepStatus.GAP:
                return AppendGap(expected=refusal.length, got=-1 if at is None else int(at))
            case core.StepStatus.CONFLICT:
                return AppendConflict(
                    refusal.position, expected=f"token {refusal.have}", got=f"token {refusal.got}"
                )
            case core.StepStatus.FULL:
                return self._full_error(refusal.length)
        raise RuntimeError(f"the core failed: {refusal.reason}")

    def _admit_step(self, tokens: int) -> Callable[[], object]:
        """Admit a step that brings more than a decode step can, a whole draft and one token more. Decode
        steps always go on. The core's desk leaves the others to :func:`step_together` (desk.cpp)."""
        return self._admit(0, tokens) if tokens > self._limits.max_draft_tokens + 1 else _nothing

    def _require_open(self) -> None:
        if self._closed or self._commitment.made is not None:
            raise _closed_error()

    def _require_room(self, more: int) -> None:
        if len(self._native) + more > self._limits.max_session_tokens:
            raise self._full_error(len(self._native) + more)

    def _full_error(self, tokens: int) -> LimitExceededError:
        return LimitExceededError(
            "the session would hold too many tokens",
            expected=f"at most {self._limits.max_session_tokens} (Limits.max_session_tokens)",
            got=tokens,
            remedy="Open it with a shorter prompt, or raise the limit.",
        )

    def continues(self, namespace: str, uuid: bytes, session_id: str) -> bool:
        """Whether this session has resumed the one of this id that left an incomplete output of this uuid in
        a namespace."""
        if namespace != self._namespace.path:
            return False
        runs = self._written_runs()
        return bool(runs) and continues(uuid, session_id, namespace, self.token_ids(), runs[0][0])

    def _written_runs(self) -> list[tuple[int, int]]:
        """First and last position, exclusive, of each run of output that is not empty."""
        return [(first, last) for first, last in self._native.output_runs() if last > first]

    def _output(self, incomplete: bool, session_id: str) -> NewOutput | None:
        runs = self._written_runs()
        if not runs:
            return None
        first = runs[0][0]
        return NewOutput(
            namespace=self._namespace.path,
            token_ids=np.concatenate([self._native.text(a, b) for a, b in runs]),
            segment_lens=tuple(b - a for a, b in runs),
            prompt_tail=self._native.text(max(0, first - PROMPT_TAIL_TOKENS), first),
            labels=self._labels,
            incomplete=incomplete,
            uuid=self._uuid(session_id, first, incomplete) if session_id else b"",
            session_id=session_id,
        )

    def _uuid(self, session_id: str, first: int, incomplete: bool) -> bytes:
        text = self.token_ids()
        return output_uuid(session_id, self._namespace.path, text, first, incomplete=incomplete)


def step_together(steps: Sequence[tuple[Session, Plan]]) -> list[bytes | Exception]:
    """Steps of different sessions, side by side on all cores.

    Returns:
        For each step its answer, a serialised StepBatchReply of one item, or why it was not taken; the
        other steps never notice. Answers laid end to end are the reply of the whole batch.
    """
    answers: list[bytes | Exception] = [_NOT_TAKEN] * len(steps)
    admitted: list[int] = []
    with ExitStack() as releases:
        for place, (session, plan) in enumerate(steps):
            try:
                releases.callback(session._admit_step(len(plan[1]) // 4))
            except Exception as error:  # a defect, too, is this one's only
                answers[place] = error
            else:
                admitted.append(place)
        taken = core.step_batch([steps[place][1] for place in admitted], core.WIRE_SOURCES)
    for place, answer in zip(admitted, taken, strict=True):
        answers[place] = answer if isinstance(answer, bytes) else _not_taken(*steps[place], answer)
    return answers


def _not_taken(session: Session, plan: Plan, refusal: core.Refusal) -> Exception:
    try:
        return session._refused(refusal, plan[2], plan[1])
    except RuntimeError as defect:
        return defect


def _nothing() -> None:
    return


def _told(verified: Verified | tuple[int, int, int]) -> tuple[int, int]:
    checked = as_verified(verified)
    return checked.width, checked.accepted


def _position(at: int) -> int:
    if isinstance(at, bool) or not isinstance(at, (int, np.integer)) or at < 0:
        raise InvalidInputError("at must be a position", expected="an int >= 0", got=repr(at)[:80])
    return min(int(at), _FAR)


def _closed_error() -> SessionClosedError:
    return SessionClosedError(
        "the session is closed", expected="a live session", remedy="Open a new session."
    )


def _log_failure(future: Future[list[OutputId]]) -> None:
    """Nobody waits for this commit, so the log is the only place where its failure can be seen."""
    error = future.exception()
    if error is not None:
        log.error("an output could not be stored", error=str(error))


def _overlap(text: TokenArray, context: TokenArray) -> int:
    """How much of the beginning of ``context`` is the end of ``text``: the longest such part, of those that
    64 occurrences of the text's last token can end."""
    if not len(text):
        return 0
    ends = np.flatnonzero(context[: len(text)] == text[-1])[::-1][:64] + 1
    return next((int(n) for n in ends if np.array_equal(text[-n:], context[:n])), 0)
