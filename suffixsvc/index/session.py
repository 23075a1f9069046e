"""Live session of the embedded engine: appends the tokens of one generation and drafts the next ones."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS, Limits
from suffixsvc.index.hot_index import SeesAll, require_ngram_length, sees_everything
from suffixsvc.index.live_text import TextPiece, pieces_of
from suffixsvc.index.namespace import NamespaceIndex
from suffixsvc.index.pending_commit import Commit, CommittedIds, PendingCommit, TextOrigin
from suffixsvc.index.session_calls import (
    DraftParams,
    as_feedback,
    as_position,
    closed_error,
    native_curve,
    overlap,
    refusal_error,
    too_long_error,
)
from suffixsvc.index.session_output import continues, output_of, output_runs
from suffixsvc.index.session_sources import SessionSources
from suffixsvc.index.texts import next_writer
from suffixsvc.runtime.low_priority import low_priority
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.runtime.turns import Turns
from suffixsvc.types import (
    Draft,
    Labels,
    ListedDraft,
    NewOutput,
    OutputId,
    TokenArray,
    TokenIds,
    Verified,
    VerifyCost,
)
from suffixsvc.values import as_cost_curve, as_token_array

log = structlog.get_logger(__name__)

#: tokens that are appended at a lower priority, and in pieces of this size, which take turns with those of
#: other sessions. Below it, an open is awaited before a model reads as many
_HUGE_CONTEXT = 16_384
#: texts and namespaces of sessions that were garbage-collected before they were closed
Abandoned = deque[tuple[PendingCommit, NamespaceIndex]]
#: admits tokens that are appended in a block, by the numbers of context and output tokens
Admit = Callable[[int, int], AbstractContextManager[None]]
#: tokens that a session may write after each admission before the next one, which measures all live sessions
UNMEASURED_TOKENS: Final = 512


class Session:
    """A live session, opened by ``Namespace.open_session``.

    Steps of one session are serialised; sessions of one namespace run concurrently. Other sessions of the
    namespace can draft from the written tokens at once, until ``close(commit=False)`` retracts them.
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
        admit: Admit,
        private: bool = False,
        principal: str = "",
        session_id: str = "",
        sees_all: SeesAll = sees_everything,
        turns: Turns | None = None,
    ) -> None:
        self._namespace = namespace
        self._sources = SessionSources([namespace, *reads], principal, sees_all)
        self._labels, self._principal, self._session_id = dict(labels), principal, session_id
        self._limits = limits
        #: most tokens of a decode step: a whole draft and one more token
        self._decode_step_tokens = limits.max_draft_tokens + 1
        self._params = DraftParams(limits.max_draft_tokens)
        self._on_close = on_close
        self._admit = admit
        self._turns = Turns() if turns is None else turns
        self._closed = False
        self._output_id: OutputId | None = None
        writer = next_writer()
        self._native = core.Session(namespace.index, [], self._sources.learner, writer, PROMPT_TAIL_TOKENS)
        self._stepper = core.SessionStepper(self._native, namespace.counters, limits.max_session_tokens)
        origin = TextOrigin(session_id, self._labels, principal, self._stepper.stop_learning)
        self._pending_commit = PendingCommit(namespace, self._native, writer, commit, origin)
        self._lock = self._pending_commit.lock
        self.apply_rights()  # before its text: nothing is drafted or learned
        self._require_capacity(len(prompt) + len(output))
        # before its text is in the index, so that a deletion finds it
        namespace.add_live(self._pending_commit)
        try:
            if private:  # before its text, of which others must not see any
                self._pending_commit.retract()
                self._stepper.stop_learning()  # what is learned is shared
            self._append(prompt, self._native.append_context)
            if len(output):
                self._append(output, lambda piece: self._native.append(piece, False))
            self._stepper.admit(UNMEASURED_TOKENS)
        except BaseException:
            self._pending_commit.release()
            namespace.remove_live(self._pending_commit)
            raise
        # The garbage collector can run this anywhere, also where locks are held: it only appends.
        self._finalizer = weakref.finalize(self, abandoned.append, (self._pending_commit, namespace))
        self._finalizer.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the session; its output is stored unless the block raised."""
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
        """Append the tokens that the model wrote since the last call, learn from them, and draft again.

        Args:
            new_token_ids: accepted tokens and the bonus token, int32[n] or a sequence of ints.
            max_draft_tokens: maximum length of the draft, clamped to the engine's limit; 0 only appends.
            verify_cost: float: cost of a drafted token in plain decode steps; or a curve c, c[w] the relative
                cost of a step of w tokens (c[1] = 1, c[0] unused).
            tree: True drafts a tree, "auto" decides by the cost.
            at: absolute position (prompt included) of new_token_ids[0]; None = next.
            verified: what was sent to the target in the last step; None = the last draft, whole.

        Raises:
            InvalidTokensError, InvalidCostError, InvalidInputError: nothing was applied.
            AppendConflict: ``at`` overlaps tokens that differ; AppendGap: it leaves tokens out.
            SessionClosedError, LimitExceededError.
        """
        tokens: list[int] | TokenArray
        if type(new_token_ids) is list and len(new_token_ids) <= self._decode_step_tokens:
            tokens = new_token_ids  # the core checks a short list faster than numpy makes an array of it
        else:
            tokens = as_token_array(new_token_ids, "new_token_ids", checked=False)
        params = self._params.of(max_draft_tokens, verify_cost, tree)
        sent, accepted = (0, 0) if verified is None else as_feedback(verified)
        position = -1 if at is None else as_position(at)
        arguments = position, *params, sent, accepted, core.WIRE_SOURCES
        found = self._stepper.step(tokens, *arguments)
        if (
            isinstance(found, core.Refusal)
            and found.status == core.StepStatus.INVALID_TOKENS
            and isinstance(tokens, list)
        ):
            # raises, unless the elements are integers of numpy, which the core does not take from a list
            tokens = as_token_array(tokens, "new_token_ids")
            found = self._stepper.step(tokens, *arguments)
        while isinstance(found, core.Refusal) and found.status == core.StepStatus.NOT_ADMITTED:
            with self.admit_step(found):
                found = self._stepper.step(tokens, *arguments)
        if found is None:
            return Draft.empty()
        if isinstance(found, core.Refusal):
            raise refusal_error(found, at, np.asarray(tokens).tobytes(), self._limits.max_session_tokens)
        return ListedDraft.of(*found)

    def append_context(self, token_ids: TokenIds) -> None:
        """Append tokens that the model did not write: tool results, the next user turn.

        Raises:
            InvalidTokensError, SessionClosedError, LimitExceededError: nothing was appended.
        """
        tokens = as_token_array(token_ids)
        with self._lock:
            self._require_open()
            self._require_capacity(len(tokens))
            with self._admit(len(tokens), 0):
                self._append(tokens, self._native.append_context)
                self._stepper.admit(UNMEASURED_TOKENS)
            self._stepper.forget_draft()

    def _append(self, tokens: TokenArray, append: Callable[[TokenArray], None]) -> None:
        if len(tokens) < _HUGE_CONTEXT:
            append(tokens)
        else:
            uninterrupted(lambda: self._append_pieces(tokens, append))

    def _append_pieces(self, tokens: TokenArray, append: Callable[[TokenArray], None]) -> None:
        for first in range(0, len(tokens), _HUGE_CONTEXT):
            with self._turns.taken(self._principal):
                low_priority(append, tokens[first : first + _HUGE_CONTEXT])

    def draft_after(
        self,
        context: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        bounds: core.DraftBounds | None = None,
    ) -> Draft:
        """Draft the continuation of ``context``, the end of this session's text or another text.

        For engines that pass the context to match instead of appending tokens. Another text is indexed after
        this session's text for this draft only, which takes as long as opening a session of that length.
        Where it begins with the end of this session's text, the overlap is not repeated.

        Args:
            bounds: limits of the draft, independent of its cost; None: no others.
            The rest as for :meth:`step`.

        Raises:
            What :meth:`step` raises.
        """
        tokens = as_token_array(context, "context", checked=False)
        params = self._params.of(max_draft_tokens, verify_cost, tree)
        found = self._stepper.draft_after(tokens, *params, bounds or core.DraftBounds(), core.WIRE_SOURCES)
        if found is None:
            return Draft.empty()
        if not isinstance(found, core.Refusal):
            return ListedDraft.of(*found)
        if found.status != core.StepStatus.CONTEXT_MISMATCH:
            raise refusal_error(found, None, b"", self._limits.max_session_tokens)
        tokens = as_token_array(tokens, "context")
        if not self._namespace.drafting:
            return Draft.empty()
        with self._lock:
            self._require_open()
            self._require_capacity(len(tokens))
            text = self.token_ids()
            scratch = self._sources.scratch_session()
            scratch.append_context(np.concatenate([text, tokens[overlap(text, tokens) :]]))
            self._stepper.forget_draft()
            width, _, as_tree = params
            costs = as_cost_curve(verify_cost, width)
            return core.draft_from(scratch, width, costs, tree=as_tree, bounds=bounds)

    def forget_draft(self) -> None:
        """Exclude the last draft from learning, because it was not sent to the target."""
        self._stepper.forget_draft()

    def stop_learning(self) -> None:
        """Learn nothing from the tokens of this session from now on: another process drafts for it, and
        learns."""
        self._stepper.stop_learning()

    def retract(self) -> None:
        """Retract this session's output for good. Idempotent.

        Later output is visible to this session only, and closing stores no output.
        """
        with self._lock:
            self._require_open()
            self._pending_commit.retract()

    def apply_rights(self) -> None:
        """Draft from what the session's reader may see at this moment, from the next step on."""
        self._sources.apply_rights(self._native)

    def attach(
        self, slot: core.SessionSlot, verify_cost: VerifyCost, meter: core.ProbeMeter | None = None
    ) -> None:
        """Let a dispatcher take this session's steps from now on. The caller holds the slot's mutex.

        Args:
            meter: counts how drafts are answered, and refuses steps if too few are; None: neither.
        """
        self._stepper.set_meter(meter)
        slot.set_cost(native_curve(verify_cost, self._limits.max_draft_tokens))
        slot.attach(self._stepper)

    # --------------------------------------------------------------------------------------- its end

    def close(
        self, commit: bool = True, *, incomplete: bool = False, wait: bool = True, session_id: str = ""
    ) -> OutputId | None:
        """End the session: store its output, or (``commit=False``) retract it.

        Args:
            commit: store the output.
            incomplete: mark the output as one whose model had not finished.
            wait: return after the output is durable. False returns None at once.
            session_id: stored with the output; "": the id that the session was opened with. The same text
                closed again under the same id, also in a later session, is the same output, stored once.

        Returns:
            The output's id. None if the session wrote no output or retracted it, with ``commit=False`` or
            ``wait=False``, if a limit rejects the output (counted in ``stats().refused_outputs``; a limit is
            never an error of a generation), and if the namespace was deleted. A second call returns the same.

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
                self._stepper.set_closed(self._closed or self._pending_commit.submitted is not None)

    def _close(self, commit: bool, *, incomplete: bool, wait: bool, session_id: str) -> OutputId | None:
        if self._pending_commit.submitted is None:
            output = (
                output_of(
                    self._native,
                    self._namespace.path,
                    self._labels,
                    incomplete=incomplete,
                    session_id=session_id or self._session_id,
                    principal=self._principal,
                )
                if commit and not self._pending_commit.retracted
                else None
            )
            if output is not None:
                uninterrupted(lambda: self._pending_commit.begin(output))
        submitted = self._pending_commit.submitted
        if submitted is not None and wait:
            self._output_id = self._pending_commit.wait()
        elif submitted is not None:
            submitted[1].add_done_callback(self._log_failure)
        logged = None if submitted is None or self._output_id is None else submitted[0]
        uninterrupted(lambda: self._end(logged))
        return self._output_id

    def _end(self, logged: NewOutput | None) -> None:
        self._pending_commit.release()
        self._closed = True
        self._native.end()
        self._finalizer.detach()
        self._namespace.remove_live(self._pending_commit)
        self._on_close(logged)

    @staticmethod
    def _log_failure(future: CommittedIds) -> None:
        """Log the failure of a commit that no caller waits for."""
        error = future.exception()
        if error is not None:
            log.error("an output could not be stored", error=str(error))

    @property
    def length(self) -> int:
        """Number of tokens so far: prompt, context and output. The position of the next append."""
        return len(self._native)

    @property
    def has_output(self) -> bool:
        """Whether the session has output tokens."""
        return bool(output_runs(self._native))

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._closed

    def token_ids(self) -> TokenArray:
        """All tokens so far, int32[length]."""
        return self._native.text(0, len(self._native))

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams of this session's text, prompt included: int32[m, n] and counts uint64[m]."""
        tokens, counts = self._native.ngrams(require_ngram_length(n))
        return tokens.reshape(-1, n), counts

    def continues(self, namespace: str, uuid: bytes, session_id: str) -> bool:
        """Whether this session resumes one that stored an incomplete output.

        Args:
            namespace, uuid: namespace and uuid of that output.
            session_id: id of the session that stored it.
        """
        if namespace != self._namespace.path:
            return False
        runs = output_runs(self._native)
        return bool(runs) and continues(uuid, session_id, namespace, self.token_ids(), runs[0][0])

    # ------------------------------------------------------------------------------------ for the service

    @property
    def visible(self) -> bool:
        """Whether other sessions can draft from what this one writes: its output is not retracted."""
        return not self._pending_commit.retracted

    @property
    def settled(self) -> bool:
        """For a closed session, whether the store has decided on its output; True if it has none."""
        submitted = self._pending_commit.submitted
        return submitted is None or submitted[1].done()

    def live_pieces(self, known: int, end: int, *, first: int = 0) -> list[TextPiece]:
        """See :func:`suffixsvc.index.live_text.pieces_of`."""
        return pieces_of(self._native, known, end, first=first)

    @contextmanager
    def admit_step(self, refusal: core.Refusal) -> Iterator[None]:
        """Admit a step that the core refused as NOT_ADMITTED, for a block that takes it again.

        It may be refused once more, if another step was taken meanwhile.

        Raises:
            LimitExceededError: its tokens do not fit.
        """
        more = max(0, refusal.length - len(self._native))
        with self._admit(0, more):
            self._stepper.admit(more + UNMEASURED_TOKENS)
            yield

    # ------------------------------------------------------------------------------------------- internal

    def _require_open(self) -> None:
        if self._closed or self._pending_commit.submitted is not None:
            raise closed_error()

    def _require_capacity(self, more: int) -> None:
        if len(self._native) + more > self._limits.max_session_tokens:
            raise too_long_error(len(self._native) + more, self._limits.max_session_tokens)
