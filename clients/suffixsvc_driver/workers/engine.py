"""Drafting with a small llama.cpp model: contexts in, chains out. No gRPC, no threads.

A request is a job of two parts: reading what its context has beyond the KV that is there already, then
drafting, a token at a time. Jobs of several sessions draft side by side, each in a KV sequence of its own,
one batch for all of them: what one of them gets does not depend on the others.

    begin() ──> reading ──read()──> drafting ──step()──> done
                (nothing to read: drafting at once; nothing to draft: done once it is read)

A request may suggest what follows. The model then computes all of that in one pass, keeps what it would have
written itself, and goes on behind it: staged speculative decoding (Spector and Re, 2023), a draft model that
is drafted for. What comes out is the same draft, but for what rounding decides.

The KV of earlier calls is kept: a request costs the tokens that are new since the last one, plus those it
drafts. Drafted tokens that the target agreed with are in the KV already.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
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
from suffixsvc.types import Draft, FloatArray
from suffixsvc_driver.targets.llama_context import ContextSettings, LlamaContext, Outputs
from suffixsvc_driver.targets.llama_model import LlamaModel, check_ids
from suffixsvc_driver.workers.batching import MANY_TOKENS, BatchCosts
from suffixsvc_driver.workers.job import DraftRequest, Job
from suffixsvc_driver.workers.sequences import KvSequence, KvSequences

__all__ = ["DEFAULT_TOP_K", "DraftEngine", "DraftRequest", "Job"]

DEFAULT_TOP_K: Final = 10
_MAX_SESSIONS: Final = 256
#: batches measured at the start: of one session, and of each wider kind
_SPEED_STEPS: Final = 12
_WIDE_STEPS: Final = 5
#: a logit that is so far below the highest one has less than a millionth of its share
_NO_SHARE: Final = np.float32(20.0)


class DraftEngine:
    """A draft model and its sessions. Not thread-safe.

    Args:
        path: a GGUF file.
        settings: of the context; ``slots`` sequences keep their KV between calls.
        batch_width: sessions computed together; 0 lets their measured costs decide.

    Attributes:
        checks: suggested tokens looked at in one pass at most: what ``max_width`` leaves; 0 where the model
            cannot forget those it does not agree with (recurrent ones).

    Raises:
        ModelNotFoundError, ModelCorruptError, ModelError.
        InvalidConfigError: a negative ``batch_width``.
    """

    def __init__(self, path: str | Path, settings: ContextSettings, *, batch_width: int = 0) -> None:
        if batch_width < 0:
            raise InvalidConfigError("batch_width makes no sense", expected=">= 0", got=batch_width)
        self.model = LlamaModel(path)
        if self.model.recurrent:
            # Snapshots go back within the last batch, which is one token here: a cut before it would be taken
            # for done, and the next draft would be that of another text.
            settings = replace(settings, max_width=1, snapshots=False)
        self.context = LlamaContext(self.model, settings)
        self.slots = settings.slots
        self.checks = settings.max_width - 1
        self._chunk = settings.batch_size
        self._widest = min(settings.slots, settings.batch_size)
        self._sequences = KvSequences(settings.slots)
        self._sessions: OrderedDict[str, list[int]] = OrderedDict()
        #: what batches take here
        self.costs = self._measure(min(batch_width, self._widest))

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.context.close()
        self.model.close()

    @property
    def context_size(self) -> int:
        return self.context.slot_size

    @property
    def seconds_per_token(self) -> float:
        return self.costs.seconds_per_token

    def most_checked(self, wanted: int) -> int:
        """Suggested tokens that are looked at where so many are wanted: the pass gives one more."""
        return max(0, min(self.checks, wanted - 1))

    def length(self, session_id: str) -> int:
        """Context tokens held for a session, 0 for one nobody knows."""
        return len(self._sessions.get(session_id, ()))

    def forget(self, session_id: str, taken: Collection[int] = ()) -> None:
        """Drop a session and the KV that only it used. ``taken``: sequences that jobs work on."""
        tokens = self._sessions.pop(session_id, None)
        if tokens is None:
            return
        for each in self._sequences.all:
            own = each.tokens and each.tokens[: len(tokens)] == tokens[: len(each.tokens)]
            if own and each.index not in taken:
                self._clear(each)

    def clear(self, taken: Collection[int] = ()) -> None:
        """Forget all KV but that of ``taken`` sequences; sessions keep their tokens, which are read again.

        Never fails: KV that cannot be dropped now is cut off by the next job on that sequence.
        """
        forgotten = [each for each in self._sequences.all if each.index not in taken]
        for each in forgotten:  # first, so that a failure below cannot leave tokens that are trusted later
            each.tokens.clear()
        for each in forgotten:
            with suppress(Exception):
                self.context.cut(each.index, 0)

    def draft(self, request: DraftRequest) -> Draft:
        """Do a request from beginning to end. Raises what :meth:`begin` does, ModelError besides."""
        job = self.begin(request)
        if job is None:
            raise LimitExceededError("every sequence is in use")  # pragma: no cover - none is taken
        while job.to_read and not job.done:
            self.read(job)
        while not job.done:
            self.step([job])
        if job.error is not None:
            raise job.error
        return job.draft

    def begin(
        self, request: DraftRequest, taken: Collection[int] = (), most_to_read: int | None = None
    ) -> Job | None:
        """Note a session's new context and find it a sequence.

        Args:
            taken: sequences of other jobs.
            most_to_read: None = any number.

        Returns:
            None where no sequence is left or more tokens would have to be read than that. Nothing changes.

        Raises:
            UnknownSessionError: ``keep`` > 0 in a session nobody knows (worker restarted, or evicted).
            AppendGap: ``keep`` beyond the session's end. InvalidTokensError, InvalidInputError.
            LimitExceededError: the context is longer than the model's. Nothing changes.
        """
        context = self._updated(request)
        if not 0.0 <= request.p_min <= 1.0:
            raise InvalidInputError("p_min is no probability", expected="0 .. 1", got=request.p_min)
        placement = self._sequences.plan(context, taken)
        if placement is None:
            return None
        if most_to_read is not None and len(context) - 1 - placement.keep > most_to_read:
            return None
        self._sessions[request.session_id] = context
        self._sessions.move_to_end(request.session_id)
        while len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        sequence = placement.sequence
        if placement.copy_from is not None:
            self.context.copy(placement.copy_from.index, sequence.index)
        self._sequences.carry_out(placement)
        self._cut(sequence)
        room = self.context_size - len(context)
        left = max(0, min(request.max_draft_tokens, room))
        job = Job(context, sequence, left, request.p_min, request.top_k or DEFAULT_TOP_K)
        suggested = request.suggested[: self.most_checked(left)]
        job.suggested = list(itertools.takewhile(self._is_token, map(int, suggested)))
        return job

    def read(self, job: Job, most: int = 1 << 30) -> None:
        """Compute up to ``most`` tokens of the job's context."""
        at = len(job.sequence.tokens)
        piece = job.context[at : at + min(most, job.to_read, self._chunk)]
        before = time.perf_counter()
        try:
            self.context.decode(piece, at, job.sequence.index, Outputs.NONE)
        except ModelError as err:
            self._broken(job, err)
            return
        job.sequence.tokens.extend(piece)
        self.costs.learn_read(len(piece), time.perf_counter() - before)

    def step(self, jobs: Sequence[Job]) -> None:
        """Draft a token for each of these jobs, none of which has anything left to read; for those whose
        suggestions have not been looked at yet, as many as agree and one more."""
        told = [job for job in jobs if job.suggested]
        for job in told:
            self._check(job)
        jobs = [job for job in jobs if job not in told]
        if not jobs:
            return
        jobs = sorted(jobs, key=lambda job: job.sequence.index)  # adjacent ones are computed together
        before = time.perf_counter()
        try:
            self._decode(jobs)
        except ModelError as err:
            if len(jobs) == 1:
                self._broken(jobs[0], err)
                return
            # one of them may be to blame: each for itself, from what was there before the batch
            for job in jobs:
                self._cut(job.sequence)
                while job.to_read and not job.done:
                    self.read(job)
                if not job.done:
                    self.step([job])
            return
        for i, job in enumerate(jobs):
            job.sequence.tokens.append(job.last)
            token, prob = _best(self.context.logits(i), job.top_k)
            job.take(token, prob, token in self.model.eog_ids)
        self.costs.learn_step(len(jobs), time.perf_counter() - before)

    def _check(self, job: Job) -> None:
        """Draft as many tokens as the model agrees with those suggested, and its own one behind them."""
        suggested, job.suggested = job.suggested, []
        at = len(job.sequence.tokens)
        try:
            self.context.decode([job.last, *suggested], at, job.sequence.index, Outputs.ALL)
        except ModelError as err:
            self._broken(job, err)
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
        if job.to_read:  # it could not be cut there after all
            job.left = 0

    def _decode(self, jobs: Sequence[Job]) -> None:
        tokens = [job.last for job in jobs]
        positions = [len(job.sequence.tokens) for job in jobs]
        if len(jobs) == 1:  # the everyday case, without building pointers
            self.context.decode(tokens, positions[0], jobs[0].sequence.index, Outputs.ALL)
        else:
            self.context.decode_each(tokens, positions, [job.sequence.index for job in jobs])

    def _is_token(self, token: int) -> bool:
        return 0 <= token < self.model.vocab_size

    def _updated(self, request: DraftRequest) -> list[int]:
        held = self._sessions.get(request.session_id)
        keep = request.keep
        if held is None and keep > 0:
            raise UnknownSessionError(
                "the worker does not hold this session",
                expected="keep = 0",
                got=keep,
                remedy="Send the whole context again.",
            )
        held = held or []
        if keep < 0 or keep > len(held):
            raise AppendGap(expected=len(held), got=keep)
        context = [*held[:keep], *check_ids(request.new_token_ids, self.model.vocab_size)]
        if not context:
            raise InvalidTokensError("an empty context", expected="at least one token", got=0)
        if len(context) > self.context_size:
            raise LimitExceededError(
                "the context is longer than the draft model's",
                expected=f"at most {self.context_size} tokens",
                got=len(context),
            )
        return context

    def _broken(self, job: Job, err: ModelError) -> None:
        """Nobody knows what a failed batch left in the KV."""
        job.error = err
        self._clear(job.sequence)

    def _cut(self, sequence: KvSequence) -> None:
        """Drop the KV behind the tokens that the book has; all of it where the model cannot drop a part
        (recurrent ones), which is then read again."""
        try:
            self.context.cut(sequence.index, len(sequence.tokens))
        except ModelError:
            self._clear(sequence)

    def _clear(self, sequence: KvSequence) -> None:
        self.context.cut(sequence.index, 0)
        sequence.tokens.clear()

    def _measure(self, batch_width: int) -> BatchCosts:
        """A few batches of each kind at the start. Of the wide ones the best counts, beside the best of one
        session: what else the machine does must not look like a cost of width."""
        alone = self._timed(1, _SPEED_STEPS)
        typical = float(np.median(alone))
        seconds = {1: typical}
        width = 2
        while width <= self._widest:
            seconds[width] = typical * min(self._timed(width, _WIDE_STEPS)) / min(alone)
            width *= 2
        read = min(MANY_TOKENS, self._chunk)
        before = time.perf_counter()
        self.context.decode([0] * read, 0, 0, Outputs.NONE)
        # what NONE has computed is complete only when something waits for it
        self.context.decode((0,), read, 0, Outputs.ALL)
        self.context.logits(0)
        reading = max(0.0, time.perf_counter() - before - typical) / read
        self.context.cut(0, 0)
        return BatchCosts(seconds, reading, batch_width)

    def _timed(self, width: int, steps: int) -> list[float]:
        """Seconds of one token for each of ``width`` sequences, a few times."""
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
    """The most likely token, the lowest id on ties, and its share among the ``top_k`` best."""
    best = int(logits.argmax())
    highest = logits[best]
    # a vocabulary is long: those whose share nobody could see are left out of the selection
    top = logits[logits >= highest - _NO_SHARE]
    if not len(top):
        return best, math.nan
    if len(top) > top_k:
        top = np.partition(top, len(top) - top_k)[-top_k:]
    return best, float(1.0 / np.exp(top.astype(np.float64) - float(highest)).sum())
