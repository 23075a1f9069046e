"""The index of one namespace: what was written there, live and stored, and what was learned from it."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index, StepCounters, new_learner, pack_weights
from suffixsvc.errors import IndexCorruptError, InvalidInputError
from suffixsvc.index.eviction import Ledger
from suffixsvc.types import NewOutput, OutputId, TokenArray

#: contexts longer than this are not told apart
MAX_CONTEXT = 64

#: what an output is charged for in the log: a row with its keys and counters, and bytes a token. As if none
#: were identical to another; labels are not counted.
LOG_BYTES_PER_OUTPUT = 256
LOG_BYTES_PER_TOKEN = 4
_REFUSALS_TOLD_SECONDS = 60.0

__all__ = [
    "LOG_BYTES_PER_OUTPUT",
    "LOG_BYTES_PER_TOKEN",
    "NamespaceIndex",
    "NamespaceStats",
    "next_writer",
]

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
    held_bytes: int  #: what the outputs take, in log and index: see docs/limits.md
    limit_bytes: int  #: what they may take; 0 = no limit
    evicted_outputs: int  #: forgotten to keep the limit
    refused_outputs: int  #: of sessions, not kept because there was no room


def positions_of(output: NewOutput) -> int:
    """How many positions of the index an output takes: its tokens and the context before them."""
    return len(output.token_ids) + len(output.prompt_tail)


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

    def __init__(
        self,
        path: str,
        weights: bytes | None = None,
        *,
        ledger: Ledger | None = None,
        limit_bytes: int = 0,
    ) -> None:
        self.path = path
        #: who was drafted from; None where nothing is ever evicted
        self.ledger = ledger
        self.limit_bytes = limit_bytes
        self.index = Index(MAX_CONTEXT)
        self.learner = new_learner(weights)
        self._lock = threading.Lock()
        self._outputs = self._tokens = self._positions = self._sessions = 0
        self._evicted = self._refused = 0
        self._told_at = -math.inf
        #: what the steps of this namespace's sessions came to
        self.counters = StepCounters()

    def learned_weights(self) -> bytes:
        """See ``Namespace.learned_weights``."""
        return pack_weights(self.learner)

    def insert(self, output: NewOutput) -> int:
        """Index a stored output; its number as a writer."""
        writer = next_writer()
        for text, context in texts_of(output):
            self.index.add(text, context, writer)
        self.count_output(output)
        return writer

    def note_kept(self, output: NewOutput, writer: int, output_id: OutputId) -> None:
        """An indexed output is in the log under this id."""
        if self.ledger is not None:
            now_us = int(time.time() * 1e6)
            own_ttl = output.ttl_seconds > 0
            self.ledger.kept(output_id, now_us, positions_of(output), stays=output.corpus, own_ttl=own_ttl)
            self.ledger.written_by(writer, output_id)

    def note_commit(self, output: NewOutput, writer: int, stored: Future[list[OutputId]]) -> None:
        """The same when that is decided: at once, or on the store's thread."""

        def note(done: Future[list[OutputId]]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.note_kept(output, writer, done.result()[0])

        stored.add_done_callback(note)

    def note_drafts(self) -> None:
        """Fetch from the core which texts drafts were taken from."""
        if self.ledger is not None:
            self.ledger.drafted(self.index.take_drafted(), (), int(time.time() * 1e6))

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
            self._positions += sign * positions_of(output)

    def count_evicted(self, outputs: int) -> None:
        with self._lock:
            self._evicted += outputs

    def count_refused(self) -> bool:
        """A session's output found no room; True where that is worth a line in the log: once a minute."""
        with self._lock:
            self._refused += 1
            last, self._told_at = self._told_at, time.monotonic()
            if self._told_at - last < _REFUSALS_TOLD_SECONDS:
                self._told_at = last
                return False
            return True

    def outputs_and_positions(self) -> tuple[int, int]:
        """How many outputs are kept, and how many positions they take."""
        with self._lock:
            return self._outputs, self._positions

    def held_bytes(self) -> int:
        """What the outputs take: their charge in the log and their share of the index.

        Of the index what is in use counts, not what it keeps as spare, and not the texts of live sessions.
        """
        native = self.index.stats()
        with self._lock:
            charged = self._outputs * LOG_BYTES_PER_OUTPUT + self._positions * LOG_BYTES_PER_TOKEN
            share = min(1.0, self._positions / native.tokens) if native.tokens else 0.0
        return charged + int(native.used * share)

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
        native, counters, held = self.index.stats(), self.counters, self.held_bytes()
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
                held_bytes=held,
                limit_bytes=self.limit_bytes,
                evicted_outputs=self._evicted,
                refused_outputs=self._refused,
            )

    def check(self) -> None:
        """Walk the whole index; IndexCorruptError names the first broken invariant."""
        problem = self.index.check()
        if problem:
            raise IndexCorruptError(
                f"the index of namespace {self.path} is broken: {problem}",
                remedy="Restart to rebuild it from the log, and report this.",
            )
