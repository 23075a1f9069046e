"""How long the locks that decode steps wait for are held at most, by what is done.

Processor time of the holder: what other programs of a busy machine do meanwhile is not counted. Work is what
the core counts (nodes, edges, occurrences) in the hold that did most of it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.core.segments import Segment, SegmentText, build_segment
from suffixsvc.types import TokenArray
from suffixsvc_bench.index_bench.measure import concatenated

__all__ = ["measure_holds"]

#: forgotten, and settled, of a segment's outputs
_FORGOTTEN = 200


def measure_holds(outputs: Iterator[TokenArray], tokens: int, folder: Path | None) -> list[dict[str, Any]]:
    """Jobs of so many tokens in an index of as many: {"job", "lock", "ms", "work"}, one for each lock."""
    index = core.Index(64)
    long, prompt, written = (concatenated(outputs, tokens) for _ in range(3))
    session = core.Session(index, [], core.new_learner(), 1, PROMPT_TAIL_TOKENS)
    found: list[dict[str, Any]] = []

    def measured(job: str, do: Callable[[], object]) -> None:
        core.reset_holds(processor_time=True)
        do()
        found.extend(
            {"job": job, "lock": lock, "ms": seconds * 1e3, "work": work}
            for lock, (seconds, work) in core.longest_holds().items()
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
            measured("settle them", segment.settle)
            measured("replace segments", lambda: index.set_segments([segment.native]))
            index.set_segments([])
            index.release_segments()
    finally:
        core.reset_holds()
    return found
