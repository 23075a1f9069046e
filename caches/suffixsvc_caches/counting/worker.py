"""What one worker does: batches in, runs out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from suffixsvc.core.ngram_count import NgramCounter
from suffixsvc.errors import InvalidTokensError
from suffixsvc.types import TokenArray
from suffixsvc_caches.counting.batches import Batch, encode
from suffixsvc_caches.counting.plan import CountPlan
from suffixsvc_caches.counting.spool import TokenSpool

__all__ = ["RunFolder", "Worker"]

#: tokens that are counted at a time; batches hold fewer, but for very long texts
_PIECE: Final = 1 << 18


class RunFolder(Protocol):
    """Where a worker puts its runs: the journal, or a stand-in for it on another machine."""

    def new_run(self) -> Path: ...

    def add_runs(
        self, runs: Iterable[Path], batches: Iterable[tuple[int, int]], tokens: int, calls: int
    ) -> None: ...


class Worker:
    """Encodes and counts batches, and writes runs: when its memory is full, now and then, and at the end.

    Args:
        plan: the build.
        runs: where runs go.
        memory_bytes: to count in.
        spool: keeps the encoded calls; None where nobody asks for them.
    """

    def __init__(
        self, plan: CountPlan, runs: RunFolder, memory_bytes: int, spool: TokenSpool | None = None
    ) -> None:
        self._plan = plan
        self._runs = runs
        self._spool = spool
        options = plan.options
        self._counter = NgramCounter(
            options.lowest, options.highest, largest_token=plan.largest_token, memory_bytes=memory_bytes
        )
        self._piece = min(_PIECE, self._counter.room)
        self._context = min(options.context_tokens, options.highest)
        self._prompt_tokens = max(self._context, spool.prompt_tokens if spool else 0)
        self._written: list[Path] = []
        self._batches: list[tuple[int, int]] = []
        self._tokens = self._calls = 0
        #: the counter holds a part of a batch
        self._torn = False
        self._flushed_at = time.monotonic()

    def take(self, batch: Batch) -> int:
        """Count a batch; returns its tokens.

        Raises:
            InvalidTokensError: ids beyond the vocabulary. StoreError: the disk.
        """
        responses, prompts = encode(self._plan, batch.calls, self._prompt_tokens)
        self._require_known(batch, responses, "response")
        self._require_known(batch, prompts, "prompt")
        if self._spool is not None:
            self._spool.write(batch, responses, prompts)
        tails = [prompt[len(prompt) - min(self._context, len(prompt)) :] for prompt in prompts]
        tokens = sum(map(len, responses))
        if tokens + sum(map(len, tails)) > self._counter.room:
            self.flush()
        self._torn = True
        for piece in self._pieces(responses, tails):
            if len(piece[0]) > self._counter.room:
                # More than all memory: the batch goes into several runs, which the journal names together.
                self._spill()
            self._counter.add(*piece)
        self._torn = False
        self._batches.append((batch.file, batch.number))
        self._tokens += tokens
        self._calls += len(batch.calls)
        if time.monotonic() - self._flushed_at > self._plan.options.checkpoint_seconds:
            self.flush()
        return tokens

    def flush(self) -> None:
        """Write down all that was counted; after an error amid a batch nothing, it is counted again."""
        if self._batches and not self._torn:
            self._spill()
            self._runs.add_runs(self._written, self._batches, self._tokens, self._calls)
            self._written, self._batches = [], []
            self._tokens = self._calls = 0
        self._flushed_at = time.monotonic()

    def _spill(self) -> None:
        if self._counter.tokens:
            run = self._runs.new_run()
            self._counter.spill(run)
            self._written.append(run)

    def _pieces(
        self, responses: Sequence[TokenArray], tails: Sequence[TokenArray]
    ) -> Iterator[tuple[TokenArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Texts as the counter takes them: joined, where they end, how much of each is context."""
        parts: list[TokenArray] = []
        ends: list[int] = []
        contexts: list[int] = []
        size = 0
        for text, context in self._cut(responses, tails):
            if parts and size + len(text) > self._piece:
                yield _joined(parts, ends, contexts)
                parts, ends, contexts, size = [], [], [], 0
            parts.append(text)
            size += len(text)
            ends.append(size)
            contexts.append(context)
        if parts:
            yield _joined(parts, ends, contexts)

    def _cut(
        self, responses: Sequence[TokenArray], tails: Sequence[TokenArray]
    ) -> Iterator[tuple[TokenArray, int]]:
        """Texts behind their contexts, and how long those are; long texts in pieces that overlap by what
        n-grams need."""
        overlap = self._plan.options.highest
        for response, tail in zip(responses, tails, strict=True):
            text = np.concatenate([tail, response]) if len(tail) else response
            context = len(tail)
            while len(text) > self._piece:
                yield text[: self._piece], context
                text = text[self._piece - overlap :]
                context = overlap
            if len(text) > context:
                yield text, context

    def _require_known(self, batch: Batch, texts: Sequence[TokenArray], what: str) -> None:
        largest = self._plan.largest_token
        for i, tokens in enumerate(texts):
            # negative ones are the largest of all as uint32
            if len(tokens) and tokens.view(np.uint32).max() > largest:
                wrong = np.flatnonzero((tokens < 0) | (tokens > largest))
                file = self._plan.files[batch.file].path
                raise InvalidTokensError(
                    f"{file} has ids beyond the vocabulary ({what} {i + 1} behind call {batch.first_call})",
                    expected=f"0 .. {largest}",
                    got=int(tokens[wrong[0]]),
                    remedy="Give the tokenizer that the ids were made with.",
                )


def _joined(
    parts: Sequence[TokenArray], ends: Sequence[int], contexts: Sequence[int]
) -> tuple[TokenArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return (
        np.concatenate(parts).astype(np.int32, copy=False),
        np.array(ends, np.int64),
        np.array(contexts, np.int64),
    )
