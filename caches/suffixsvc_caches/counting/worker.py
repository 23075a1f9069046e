"""Worker of counting: encodes and counts batches, and writes sorted runs."""

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

#: tokens counted at a time; batches have fewer, except with very long texts
_PIECE: Final = 1 << 18


class RunFolder(Protocol):
    """Destination of runs: the journal, or a task's result on another machine."""

    def new_run(self) -> Path:
        """Return a path for a new run."""

    def add_runs(
        self, runs: Iterable[Path], batches: Iterable[tuple[int, int]], tokens: int, calls: int
    ) -> None:
        """Record runs that together count these (file, batch)."""


class Worker:
    """Encodes and counts batches; writes a run when its memory is full, at checkpoints, and at the end.

    Args:
        plan: the build.
        runs: destination of runs.
        memory_bytes: memory of the counter.
        spool: receives the encoded calls; None = they are not kept.
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
        #: the counter has a part of a batch
        self._partial_batch = False
        self._flushed_at = time.monotonic()

    def count(self, batch: Batch) -> int:
        """Count a batch and return the number of its response tokens.

        Raises:
            InvalidTokensError: ids beyond the vocabulary. StoreError: a run cannot be written.
        """
        responses, prompts = encode(self._plan, batch.calls, self._prompt_tokens)
        self._require_in_vocabulary(batch, responses, "response")
        self._require_in_vocabulary(batch, prompts, "prompt")
        if self._spool is not None:
            self._spool.write(batch, responses, prompts)
        tails = [prompt[len(prompt) - min(self._context, len(prompt)) :] for prompt in prompts]
        tokens = sum(map(len, responses))
        if tokens + sum(map(len, tails)) > self._counter.room:
            self.flush()
        self._partial_batch = True
        for piece in self._pieces(responses, tails):
            if len(piece[0]) > self._counter.room:
                # The batch exceeds the memory: it becomes several runs, which the journal records together.
                self._spill()
            self._counter.add(*piece)
        self._partial_batch = False
        self._batches.append((batch.file, batch.number))
        self._tokens += tokens
        self._calls += len(batch.calls)
        if time.monotonic() - self._flushed_at > self._plan.options.checkpoint_seconds:
            self.flush()
        return tokens

    def flush(self) -> None:
        """Write and record a run; after an error inside a batch, drop the counts since the last run."""
        if self._batches and not self._partial_batch:
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
        """Yield input of the counter: joined texts, their ends, and the length of the context of each."""
        texts: list[TokenArray] = []
        contexts: list[int] = []
        size = 0
        for text, context in self._cut(responses, tails):
            if texts and size + len(text) > self._piece:
                yield _counter_input(texts, contexts)
                texts, contexts, size = [], [], 0
            texts.append(text)
            contexts.append(context)
            size += len(text)
        if texts:
            yield _counter_input(texts, contexts)

    def _cut(
        self, responses: Sequence[TokenArray], tails: Sequence[TokenArray]
    ) -> Iterator[tuple[TokenArray, int]]:
        """Yield (context and response, length of the context).

        Long texts are divided into pieces that overlap by the longest n-gram.
        """
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

    def _require_in_vocabulary(self, batch: Batch, texts: Sequence[TokenArray], what: str) -> None:
        largest = self._plan.largest_token
        for i, tokens in enumerate(texts):
            # as uint32 negative ids are larger than any valid one
            if len(tokens) and tokens.view(np.uint32).max() > largest:
                wrong = np.flatnonzero((tokens < 0) | (tokens > largest))
                file = self._plan.files[batch.file].path
                raise InvalidTokensError(
                    f"ids of {file} must be in the vocabulary ({what} {i + 1} after call {batch.first_call})",
                    expected=f"0 .. {largest}",
                    got=int(tokens[wrong[0]]),
                    remedy="Give the tokenizer that the ids were made with.",
                )


def _counter_input(
    texts: Sequence[TokenArray], contexts: Sequence[int]
) -> tuple[TokenArray, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return np.concatenate(texts).astype(np.int32, copy=False), ends, np.array(contexts, np.int64)
