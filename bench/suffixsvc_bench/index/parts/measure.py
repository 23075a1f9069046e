"""Single measurements of the index benchmark. Times are wall-clock seconds of the measured call alone."""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import numpy as np

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS, Limits
from suffixsvc.index import NamespaceIndex, OnCommitted, Session
from suffixsvc.types import NewOutput, OutputId, TokenArray
from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_caches.counting.memory import resident_bytes

#: cost of a drafted token, in plain decode steps
_COST = 0.02


class MeasuredIndex:
    """A namespace's index with timed additions and removals."""

    def __init__(self) -> None:
        gc.collect()
        self._resident_before = resident_bytes()
        self.namespace = NamespaceIndex("bench")
        self.seconds = 0.0  #: total time of add
        self.tokens = 0
        self._writer = itertools.count(1 << 30)

    def add(self, outputs: Sequence[TokenArray]) -> float:
        """Add outputs; return the seconds."""
        index, start = self.namespace.index, time.perf_counter()
        for output in outputs:
            index.add(output, 0, next(self._writer))
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.tokens += sum(map(len, outputs))
        return seconds

    def remove(self, outputs: Sequence[TokenArray]) -> float:
        """Remove outputs; return the seconds.

        Raises:
            AssertionError: an output is not in the index.
        """
        index, start = self.namespace.index, time.perf_counter()
        found = [index.remove(output, 0) for output in outputs]
        seconds = time.perf_counter() - start
        if not all(found):
            raise AssertionError("outputs to remove must be in the index")
        self.tokens -= sum(map(len, outputs))
        return seconds

    @property
    def bytes(self) -> int:
        """Bytes of the index as it counts them."""
        return int(self.namespace.index.stats().bytes)

    @property
    def resident(self) -> int:
        """Growth of the process's resident memory since construction, bytes.

        Small values are not meaningful: the allocator reuses memory that was freed before.
        """
        return resident_bytes() - self._resident_before

    def close(self) -> None:
        """Replace the index by an empty one."""
        self.namespace = NamespaceIndex("bench")


def steps(namespace: NamespaceIndex, outputs: Sequence[TokenArray], max_draft_tokens: int) -> dict[str, Any]:
    """Write outputs token by token with a draft after each token.

    Returns:
        Percentiles of microseconds: "append_us" and "draft_us" of the native session, as the embedded engine
            calls it; "step_us" of ``Session.step``, which adds the engine's Python. Each output is retracted
            at its end.
    """
    append, draft, step, drafted = [], [], [], 0
    curve = 1.0 + _COST * np.arange(max_draft_tokens + 1, dtype=np.float64)
    for writer, output in enumerate(outputs, 1 << 29):
        native = core.Session(namespace.index, [], namespace.learner, writer, PROMPT_TAIL_TOKENS)
        for i in range(len(output)):
            token = output[i : i + 1]
            a = time.perf_counter()
            native.append(token, True)
            b = time.perf_counter()
            columns = native.draft(max_draft_tokens, curve, False, core.WIRE_SOURCES)
            c = time.perf_counter()
            append.append(b - a)
            draft.append(c - b)
            drafted += len(columns[0]) if columns else 0
        native.retract()
        with _session(namespace) as session:
            for i in range(len(output)):
                token = output[i : i + 1]
                a = time.perf_counter()
                session.step(token, max_draft_tokens, _COST)
                step.append(time.perf_counter() - a)
            session.close(commit=False)
    return {
        "append_us": percentiles(append),
        "draft_us": percentiles(draft),
        "step_us": percentiles(step),
        "drafted_per_step": drafted / max(1, len(append)),
    }


def open_session(namespace: NamespaceIndex, prompt: TokenArray) -> float:
    """Seconds to open a session with this prompt; the best of three, as the first allocates memory."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        session = _session(namespace, prompt)
        best = min(best, time.perf_counter() - start)
        session.close(commit=False)
    return best


def concatenated(outputs: Iterator[TokenArray], tokens: int) -> TokenArray:
    """The next ``tokens`` tokens of the outputs as one array, int32[tokens]."""
    parts, have = [], 0
    while have < tokens:
        parts.append(next(outputs))
        have += len(parts[-1])
    return np.ascontiguousarray(np.concatenate(parts)[:tokens])


def _session(namespace: NamespaceIndex, prompt: TokenArray | None = None) -> Session:
    def commit(_output: NewOutput, _done: OnCommitted, _live_bytes: int) -> Future[list[OutputId]]:
        raise AssertionError("sessions of this benchmark must not commit")

    nothing = np.zeros(0, np.int32)
    return Session(
        namespace,
        [],
        nothing if prompt is None else prompt,
        nothing,
        labels={},
        limits=Limits(),
        commit=commit,
        on_close=lambda kept: None,
        abandoned=deque(),
        admit=lambda tokens, step_tokens: nullcontext(),
    )
