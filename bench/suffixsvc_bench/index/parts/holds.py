"""Longest hold times of the locks that decode steps wait for, by operation.

Times are CPU time of the holder, so other processes do not count. Work is the number of operations that the
core counts (nodes, edges, occurrences) in the hold with the most of them.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.core import _ext
from suffixsvc.core.segments import Segment, SegmentText, build_segment
from suffixsvc.types import TokenArray
from suffixsvc_bench.index.parts.measure import concatenated

#: outputs of a segment that are forgotten and settled
_FORGOTTEN = 200


def measure_holds(outputs: Iterator[TokenArray], tokens: int, folder: Path | None) -> list[dict[str, Any]]:
    """Run operations of ``tokens`` tokens each in an index of as many tokens.

    Returns:
        {"job", "lock", "ms", "work"} for each operation and lock.
    """
    index = core.Index(64)
    long, prompt, written = (concatenated(outputs, tokens) for _ in range(3))
    session = core.Session(index, [], core.new_learner(), 1, PROMPT_TAIL_TOKENS)
    found: list[dict[str, Any]] = []

    def measured(job: str, do: Callable[[], object]) -> None:
        _ext.reset_holds(processor_time=True)
        do()
        found.extend(
            {"job": job, "lock": lock, "ms": seconds * 1e3, "work": work}
            for lock, (seconds, work) in _ext.longest_holds().items()
            if seconds > 0
        )

    try:
        measured("add an output", lambda: index.add(long, 0, 2))
        measured("open a session with a prompt", lambda: session.append_context(prompt))
        measured("write in a session", lambda: session.append(written, True))
        measured("export bigrams", lambda: index.ngrams(2))
        measured("check the index", index.check)
        measured("discard the session", session.retract)
        measured("forget the output", lambda: index.remove(long, 0))
        measured("statistics", index.stats)
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name) / "holds.seg"
            texts = itertools.islice(outputs, 10 * _FORGOTTEN)
            build_segment(path, (SegmentText(text, 0, i + 1) for i, text in enumerate(texts)))
            segment = Segment(path)
            measured("forget sealed outputs", lambda: segment.forget(segment.outputs()[:_FORGOTTEN]))
            measured("settle them", segment.correct_hubs)
            measured("replace segments", lambda: index.set_segments([segment]))
            index.set_segments([])
            index.release_segments()
    finally:
        _ext.reset_holds()
    return found
