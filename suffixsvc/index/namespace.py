"""The index of one namespace: what was written there, live and stored, and what was learned from it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index, StepCounters, new_learner, pack_weights
from suffixsvc.errors import IndexCorruptError, InvalidInputError
from suffixsvc.types import NewOutput, TokenArray

#: contexts longer than this are not told apart
MAX_CONTEXT = 64

__all__ = ["NamespaceIndex", "NamespaceStats", "next_writer"]

_writers = itertools.count(2)  # 1 is a session within its own index


def next_writer() -> int:
    """A number that no other session or output of this process has: it tells own evidence from others'."""
    return next(_writers) % 0x7FFF_FFFF


def require_ngram_length(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_CONTEXT:
        raise InvalidInputError(
            "n makes no sense", expected=f"an int in 1 .. {MAX_CONTEXT}", got=repr(n)[:80]
        )
    return n


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """What a namespace holds and what came of its drafts. Counters start at zero with the process."""

    outputs: int  #: occurrences kept
    tokens: int  #: tokens of those outputs
    sessions: int  #: live now
    index_bytes: int
    index_nodes: int
    num_steps: int  #: steps that asked for a draft
    num_drafts: int  #: steps answered with at least one token
    num_draft_tokens: int
    num_accepted_tokens: int


def texts_of(output: NewOutput) -> Iterator[tuple[TokenArray, int]]:
    """The texts an output is indexed as: (tokens, how many of them are context only).

    Tokens that a tool result or another turn stood between never become neighbours: each segment is a
    text of its own, and only the first has the prompt's tail before it.
    """
    start = 0
    tail = output.prompt_tail
    for length in output.segment_lens:
        segment = output.token_ids[start : start + length]
        yield np.ascontiguousarray(np.concatenate([tail, segment]), dtype=np.int32), len(tail)
        start += length
        tail = tail[:0]


class NamespaceIndex:
    """One namespace's share of memory. Thread-safe; the native index has its own locks."""

    def __init__(self, path: str, weights: bytes | None = None) -> None:
        self.path = path
        self.index = Index(MAX_CONTEXT)
        self.learner = new_learner(weights)
        self._lock = threading.Lock()
        self._outputs = self._tokens = self._sessions = 0
        #: what the steps of this namespace's sessions came to
        self.counters = StepCounters()

    def learned_weights(self) -> bytes:
        """See ``Namespace.learned_weights``."""
        return pack_weights(self.learner)

    def insert(self, output: NewOutput) -> None:
        """Index a stored output."""
        writer = next_writer()
        for text, context in texts_of(output):
            self.index.add(text, context, writer)
        self.count_output(output)

    def remove(self, output: NewOutput) -> None:
        """Take a stored output out of the index again; IndexCorruptError if it is not in it."""
        for text, context in texts_of(output):
            if not self.index.remove(text, context):
                raise IndexCorruptError(
                    f"an output of namespace {self.path} is in the log but not in the index",
                    remedy="Restart to rebuild the index from the log, and report this.",
                )
        self.count_output(output, -1)

    def count_output(self, output: NewOutput, sign: int = 1) -> None:
        with self._lock:
            self._outputs += sign
            self._tokens += sign * len(output.token_ids)

    def count_session(self, change: int) -> None:
        with self._lock:
            self._sessions += change

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams of the namespace: int32[m, n] and their counts uint64[m].

        An n-gram counts once for every place where its last token was written by a model; earlier
        tokens of it may stand in the prompt's tail.
        """
        tokens, counts = self.index.ngrams(require_ngram_length(n))
        return tokens.reshape(-1, n), counts

    def stats(self) -> NamespaceStats:
        native, counters = self.index.stats(), self.counters
        with self._lock:
            return NamespaceStats(
                outputs=self._outputs,
                tokens=self._tokens,
                sessions=self._sessions,
                index_bytes=native.bytes,
                index_nodes=native.nodes,
                num_steps=counters.steps,
                num_drafts=counters.drafts,
                num_draft_tokens=counters.drafted,
                num_accepted_tokens=counters.accepted,
            )

    def check(self) -> None:
        """Walk the whole index; IndexCorruptError names the first broken invariant."""
        problem = self.index.check()
        if problem:
            raise IndexCorruptError(
                f"the index of namespace {self.path} is broken: {problem}",
                remedy="Restart to rebuild it from the log, and report this.",
            )
