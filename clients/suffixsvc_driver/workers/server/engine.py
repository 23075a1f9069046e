"""Draft engine: drafts chains for contexts with a small llama.cpp model. No gRPC, no threads.

A job has two phases: prefill of the context tokens that are not in the KV yet, then drafting, one token per
step. Jobs of several sessions draft in one batch, each in its own KV sequence, so that their drafts do not
depend on each other.

    begin() ──> prefill ──prefill()──> drafting ──step()──> done
                (no missing token: drafting at once; nothing to draft: done after the prefill)

A request may suggest tokens that follow. The model then verifies them in one pass, keeps those that it would
have chosen, and continues after them: staged speculative decoding (Spector and Re, 2023). The draft is the
same, apart from rounding.

The KV of earlier requests is kept: a request computes the tokens that are new since the last one, and those
that it drafts. Drafted tokens that the target accepted are in the KV already.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.errors import (
    AppendGap,
    InvalidConfigError,
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    ModelError,
    UnknownSessionError,
)
from suffixsvc.types import FloatArray
from suffixsvc_driver.targets.llama.context import ContextSettings, LlamaContext
from suffixsvc_driver.targets.llama.model import LlamaModel, check_ids
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.slots import Slot, SlotCache
from suffixsvc_driver.workers.server.batching import MANY_TOKENS, BatchCosts
from suffixsvc_driver.workers.server.job import DraftRequest, Job

__all__ = ["DEFAULT_TOP_K", "DraftEngine", "DraftRequest", "Job"]

DEFAULT_TOP_K: Final = 10
_MAX_SESSIONS: Final = 256
#: batches measured at the start: of one session, and of each larger width
_SPEED_STEPS: Final = 12
_WIDE_STEPS: Final = 5
#: a token with a logit this far below the highest has less than a millionth of its probability
_NEGLIGIBLE_GAP: Final = np.float32(20.0)


@dataclass(frozen=True, slots=True)
class _Session:
    """A session.

    Attributes:
        context: its tokens.
        unnamed_owner: owner of the KV that is freed with it; None: that of a named principal stays.
    """

    context: list[int]
    unnamed_owner: str | None


class DraftEngine:
    """A draft model and its sessions. Not thread-safe.

    Args:
        path: a GGUF file.
        settings: of the context; ``slots`` sequences keep their KV between calls.
        batch_width: sessions computed together; 0 = by their measured costs.
        offload: the part of the model that is on GPUs; None: none.

    Attributes:
        context_size: capacity of a sequence in tokens.
        checks: limit of suggested tokens verified in one pass (``max_width`` - 1); 0 if the model cannot roll
            back (recurrent ones).
        costs: measured costs of batches.

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError: the file cannot be loaded.
        InvalidConfigError: a negative ``batch_width``, or llama.cpp does not have the GPUs.
    """

    def __init__(
        self,
        path: str | Path,
        settings: ContextSettings,
        *,
        batch_width: int = 0,
        offload: Offload | None = None,
    ) -> None:
        if batch_width < 0:
            raise InvalidConfigError("batch_width must be >= 0", got=batch_width)
        self.model = LlamaModel(path, offload=offload)
        if self.model.recurrent:
            # Snapshots roll back within the last batch only, which is one token here: llama.cpp would accept
            # a cut before it, and the next draft would continue another text.
            settings = replace(settings, max_width=1, snapshots=False)
        self.context = LlamaContext(self.model, settings)
        self.context_size = self.context.slot_size
        self.slots = settings.slots
        self.checks = settings.max_width - 1
        self._chunk = settings.batch_size
        self._widest = min(settings.slots, settings.batch_size)
        self._sequences = SlotCache(settings.slots)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self.costs = self._measure(min(batch_width, self._widest))

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.context.close()
        self.model.close()

    @property
    def seconds_per_token(self) -> float:
        """Seconds per drafted token of one session."""
        return self.costs.seconds_per_token

    def max_verified(self, wanted: int) -> int:
        """Return how many suggested tokens are verified for ``wanted`` tokens: the pass yields one more."""
        return max(0, min(self.checks, wanted - 1))

    def length(self, session_id: str) -> int:
        """Return the number of context tokens held for a session; 0 for an unknown one."""
        held = self._sessions.get(session_id)
        return 0 if held is None else len(held.context)

    def forget(self, session_id: str, taken: Collection[int] = ()) -> None:
        """Remove a session, and the KV that only it used; that of a named principal stays for its others.

        Args:
            taken: indices of sequences that jobs use.
        """
        held = self._sessions.pop(session_id, None)
        if held is None or held.unnamed_owner is None:
            return
        tokens = held.context
        for each in self._sequences.slots:
            own = (
                each.principal == held.unnamed_owner
                and each.tokens
                and each.tokens[: len(tokens)] == tokens[: len(each.tokens)]
            )
            if own and each.index not in taken:
                self._clear(each)

    def clear(self, taken: Collection[int] = ()) -> None:
        """Drop all KV except that of ``taken`` sequences; sessions keep their tokens, to be computed again.

        Never fails: KV that cannot be dropped now is cut off by the next job on that sequence.
        """
        cleared = [each for each in self._sequences.slots if each.index not in taken]
        for each in cleared:  # first, so that after a failure below no token counts as computed
            each.tokens.clear()
        for each in cleared:
            with suppress(Exception):
                self.context.cut(each.index, 0)

    def request_seconds(self, request: DraftRequest) -> float:
        """Return the expected time of a request that was not started."""
        wanted = min(request.max_draft_tokens, self.context_size)
        computed = len(request.new_token_ids) + min(len(request.suggested), self.max_verified(wanted))
        return self.costs.prefill_seconds(computed) + self.costs.step_seconds(1) * wanted

    def job_seconds(self, job: Job) -> float:
        """Return the expected time of the rest of a job."""
        return self.costs.prefill_seconds(job.to_compute) + self.costs.step_seconds(1) * job.left

    def batch_seconds(self, jobs: Sequence[Job], chunk_tokens: int) -> float:
        """Return the expected time until the next batch of these jobs, with a chunk of prefill, ends."""
        step = self.costs.step_seconds(self.costs.width_for(len(jobs))) if jobs else 0.0
        return step + self.costs.prefill_seconds(sum(job.to_compute for job in jobs) + chunk_tokens)

    def begin(
        self, request: DraftRequest, taken: Collection[int] = (), max_prefill: int | None = None
    ) -> Job | None:
        """Update a session's context and assign a sequence. After an error nothing has changed.

        Args:
            taken: indices of sequences that other jobs use.
            max_prefill: limit of tokens to compute; None = any number.

        Returns:
            None if no sequence is free or more than ``max_prefill`` tokens are missing. Nothing changes.

        Raises:
            UnknownSessionError: ``keep`` > 0 in an unknown session (worker restarted, or evicted).
            AppendGap: ``keep`` beyond the session's end.
            InvalidTokensError, InvalidInputError: an empty context, ids outside the vocabulary, or ``p_min``.
            LimitExceededError: the context is longer than the model's.
        """
        context = self._updated(request)
        if not 0.0 <= request.p_min <= 1.0:
            raise InvalidInputError("p_min must be in 0 .. 1", got=request.p_min)
        free = [slot.index for slot in self._sequences.slots if slot.index not in taken]
        if not free:
            return None
        placement = self._sequences.place(context, free, request.owner)
        if max_prefill is not None and len(context) - 1 - placement.keep > max_prefill:
            return None
        self._sessions[request.session_id] = _Session(context, None if request.principal else request.owner)
        self._sessions.move_to_end(request.session_id)
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        sequence = placement.slot
        if placement.copy_from is not None:
            self.context.copy(placement.copy_from.index, sequence.index)
        self._sequences.apply(placement)
        self._cut(sequence)
        left = max(0, min(request.max_draft_tokens, self.context_size - len(context)))
        job = Job(context, sequence, left, request.p_min, request.top_k or DEFAULT_TOP_K)
        suggested = request.suggested[: self.max_verified(left)]
        ids = range(self.model.vocab_size)
        job.suggested = list(itertools.takewhile(lambda token: token in ids, map(int, suggested)))
        return job

    def prefill(self, job: Job, limit: int = 1 << 30) -> None:
        """Compute up to ``limit`` tokens of the job's context."""
        at = len(job.sequence.tokens)
        piece = job.context[at : at + min(limit, job.to_prefill, self._chunk)]
        before = time.perf_counter()
        try:
            self.context.decode(piece, at, job.sequence.index, logits=False)
        except ModelError as err:
            self._fail(job, err)
            return
        job.sequence.tokens.extend(piece)
        self.costs.record_prefill(len(piece), time.perf_counter() - before)

    def step(self, jobs: Sequence[Job]) -> None:
        """Draft one token for each of these jobs, whose prefill must be complete; jobs with unverified
        suggestions get the suggested tokens that the model agrees with, and one more."""
        with_suggestions = [job for job in jobs if job.suggested]
        for job in with_suggestions:
            self._verify_suggested(job)
        jobs = [job for job in jobs if job not in with_suggestions]
        if not jobs:
            return
        jobs = sorted(jobs, key=lambda job: job.sequence.index)  # adjacent sequences are computed together
        before = time.perf_counter()
        try:
            self._decode(jobs)
        except ModelError as err:
            if len(jobs) == 1:
                self._fail(jobs[0], err)
                return
            # one of the jobs may be the cause: retry each alone, from the state before the batch
            for job in jobs:
                self._cut(job.sequence)
                while job.to_prefill and not job.done:
                    self.prefill(job)
                if not job.done:
                    self.step([job])
            return
        for i, job in enumerate(jobs):
            job.sequence.tokens.append(job.last)
            token, prob = _best(self.context.logits(i), job.top_k)
            job.take(token, prob, token in self.model.eog_ids)
        self.costs.record_step(len(jobs), time.perf_counter() - before)

    def _verify_suggested(self, job: Job) -> None:
        """Draft the suggested tokens that the model agrees with, and one more."""
        suggested, job.suggested = job.suggested, []
        at = len(job.sequence.tokens)
        try:
            self.context.decode([job.last, *suggested], at, job.sequence.index, logits=True)
        except ModelError as err:
            self._fail(job, err)
            return
        job.sequence.tokens.append(job.last)
        for i, expected in enumerate([*suggested, -1]):
            token, prob = _best(self.context.logits(i), job.top_k)
            drafted = len(job.token_ids)
            job.take(token, prob, token in self.model.eog_ids)
            if len(job.token_ids) == drafted or token != expected or not job.left:
                break
            job.sequence.tokens.append(token)
        self._cut(job.sequence)
        if job.to_prefill:  # the sequence could not be cut there, and was cleared
            job.left = 0

    def _decode(self, jobs: Sequence[Job]) -> None:
        tokens = [job.last for job in jobs]
        positions = [len(job.sequence.tokens) for job in jobs]
        if len(jobs) == 1:  # the usual case, without building arrays of pointers
            self.context.decode(tokens, positions[0], jobs[0].sequence.index, logits=True)
        else:
            self.context.decode_each(tokens, positions, [job.sequence.index for job in jobs])

    def _updated(self, request: DraftRequest) -> list[int]:
        session = self._sessions.get(request.session_id)
        held, keep = None if session is None else session.context, request.keep
        if held is None and keep > 0:
            raise UnknownSessionError(
                "unknown session",
                expected="keep = 0",
                got=keep,
                remedy="Send the whole context again.",
            )
        held = held or []
        if keep < 0 or keep > len(held):
            raise AppendGap(expected=len(held), got=keep)
        context = [*held[:keep], *check_ids(request.new_token_ids, self.model.vocab_size)]
        if not context:
            raise InvalidTokensError("the context must have at least one token", got=0)
        if len(context) > self.context_size:
            raise LimitExceededError(
                "the context is longer than the draft model's",
                expected=f"at most {self.context_size} tokens",
                got=len(context),
            )
        return context

    def _fail(self, job: Job, err: ModelError) -> None:
        """End a job after a failed batch, which leaves its KV in an unknown state."""
        job.error = err
        self._clear(job.sequence)

    def _cut(self, sequence: Slot) -> None:
        """Drop the KV after the recorded tokens; all of it if the model cannot drop a part (recurrent ones),
        which is then computed again."""
        try:
            self.context.cut(sequence.index, len(sequence.tokens))
        except ModelError:
            self._clear(sequence)

    def _clear(self, sequence: Slot) -> None:
        self.context.cut(sequence.index, 0)
        sequence.tokens.clear()

    def _measure(self, batch_width: int) -> BatchCosts:
        """Measure a few batches of each width at the start. Wide ones are rated by their best time relative
        to the best of one session: other load on the machine must not count as a cost of width."""
        alone = self._timed(1, _SPEED_STEPS)
        typical = float(np.median(alone))
        seconds = {1: typical}
        width = 2
        while width <= self._widest:
            seconds[width] = typical * min(self._timed(width, _WIDE_STEPS)) / min(alone)
            width *= 2
        count = min(MANY_TOKENS, self._chunk)
        before = time.perf_counter()
        self.context.decode([0] * count, 0, 0, logits=False)
        # a batch without outputs is complete only after a later one was waited for
        self.context.decode((0,), count, 0, logits=True)
        self.context.logits(0)
        prefill = max(0.0, time.perf_counter() - before - typical) / count
        self.context.cut(0, 0)
        return BatchCosts(seconds, prefill, batch_width)

    def _timed(self, width: int, steps: int) -> list[float]:
        """Seconds of batches with one token of each of ``width`` sequences."""
        samples = []
        for at in range(steps):
            before = time.perf_counter()
            self.context.decode_each([0] * width, [at] * width, range(width))
            self.context.logits(0)
            samples.append(time.perf_counter() - before)
        for index in range(width):
            self.context.cut(index, 0)
        return samples[min(2, steps - 1) :]


def _best(logits: FloatArray, top_k: int) -> tuple[int, float]:
    """The most likely token (the lowest id on ties), and its probability among the ``top_k`` best."""
    best = int(logits.argmax())
    highest = logits[best]
    # leave tokens of negligible probability out of the selection, which is slow on a large vocabulary
    top = logits[logits >= highest - _NEGLIGIBLE_GAP]
    if not len(top):
        return best, math.nan
    if len(top) > top_k:
        top = np.partition(top, len(top) - top_k)[-top_k:]
    return best, float(1.0 / np.exp(top.astype(np.float64) - float(highest)).sum())
