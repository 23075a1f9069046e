"""Benchmark of sealed segments: building, merging, opening, bytes per token, drafts, forgetting.

    suffixsvc bench segment --sizes 1M,10M --json

Texts are "realistic" outputs of 500 tokens (:mod:`suffixsvc_bench.index.texts`). A draft has 16 positions,
each with a context that is one token longer, in the continuation of the texts, which the segment does not
contain: all shorter contexts are looked up, the votes of their followers are collected, and the strongest
follower of the longest context is the next token.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import Any

import numpy as np

from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc_bench.index.parts.measure import concatenated
from suffixsvc_bench.index.texts import stream
from suffixsvc_bench.report.output import Report
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.tables import Grid

OUTPUT_TOKENS = 500
DEPTH = 16
#: tokens of a segment that is built; larger sizes are merged from several
CHUNK = 10_000_000
#: tokens of the smallest segment that is measured
SMALLEST = 50_000


def measure_segment(tokens: int, folder: Path, seed: int = 1) -> dict[str, Any]:
    """Seal ``tokens`` tokens (at least 100 outputs) below ``folder`` and measure; the files are removed.

    Returns:
        The figures of :data:`_ROWS`. Draft times are those of the segment's index alone, without a session.
    """
    outputs = stream("realistic", OUTPUT_TOKENS, seed)
    path = folder / "whole.seg"
    parts: list[Path] = []
    build_s = merge_s = 0.0
    for start in range(0, tokens, CHUNK):
        chunk = itertools.islice(outputs, min(CHUNK, tokens - start) // OUTPUT_TOKENS)
        texts = [SegmentText(text, 0, i) for i, text in enumerate(chunk, 1 + start // OUTPUT_TOKENS)]
        parts.append(folder / f"part{len(parts)}.seg")
        build_s += timeit(partial(build_segment, parts[-1], texts), number=1)
    if len(parts) > 1:
        sources = [Segment(part) for part in parts]
        merge_s = timeit(partial(merge_segments, path, sources), number=1)
        for part in parts:
            part.unlink()
    else:
        parts[0].rename(path)
    began = time.perf_counter()
    segment = Segment(path)
    open_s = time.perf_counter() - began
    unseen = concatenated(outputs, 30_000)
    starts = list(range(64, len(unseen) - DEPTH, 24))
    first = segment.time_drafts(unseen, starts[:1], DEPTH)
    segment.time_drafts(unseen, starts, DEPTH)
    drafts = segment.time_drafts(unseen, starts, DEPTH) * 1e6
    forgets, settles = [], []
    for output in range(1, 50):
        forgets.append(timeit(partial(segment.forget, [output]), number=1))
        settles.append(timeit(segment.correct_hubs, number=1))
    forgets.append(timeit(partial(segment.forget, [50]), number=1))
    stale = segment.time_drafts(unseen, starts, DEPTH) * 1e6
    stats = segment.stats()
    path.unlink()
    return {
        "tokens": tokens,
        "build_us_per_token": build_s / tokens * 1e6,
        "merge_us_per_token": merge_s / tokens * 1e6,
        "bytes_per_token": stats.file_bytes / stats.tokens,
        "heap_bytes": stats.resident_bytes,
        "open_ms": open_s * 1e3,
        "first_draft_ms": float(first[0]) * 1e3,
        **{f"draft_us_p{q}": float(np.percentile(drafts, q)) for q in (50, 90, 99)},
        "stale_draft_us_p50": float(np.percentile(stale, 50)),
        "forget_us": float(np.median(forgets)) * 1e6,
        "settle_us": float(np.median(settles)) * 1e6,
    }


def run_segment_bench(
    sizes: Sequence[int],
    seed: int = 1,
    folder: Path | None = None,
    notify: Report = lambda *_: None,
) -> dict[str, Any]:
    """Measure each size: {"provenance", "seed", "sizes": the figures of each}.

    Args:
        folder: parent of the scratch folders, about 20 bytes per token; None: the default for temporary
            files.
        notify: called with the current task and the completed fraction of the run.
    """
    origin = provenance()
    figures = []
    for i, tokens in enumerate(sizes):
        notify(f"a segment of {tokens / 1e6:g}M tokens", sum(sizes[:i]) / sum(sizes))
        with tempfile.TemporaryDirectory(prefix="sfx-bench-", dir=folder) as scratch:
            figures.append(measure_segment(tokens, Path(scratch), seed))
    return {"provenance": origin.as_dict(), "seed": seed, "sizes": figures}


def segment_grids(results: Mapping[str, Any]) -> list[Grid]:
    """One table with one column per size."""
    sizes = results["sizes"]
    grid = Grid(["a sealed segment", *(f"{at['tokens'] / 1e6:g}M tokens" for at in sizes)])
    grid.rows += [
        [label, *(form.format(at[key]) if at[key] else "-" for at in sizes)] for label, key, form in _ROWS
    ]
    return [grid]


#: label, key and format; a key of 0 is a part that was not run
_ROWS = (
    ("build, us per token", "build_us_per_token", "{:.2f}"),
    ("merge, us per token", "merge_us_per_token", "{:.2f}"),
    ("mapped bytes per token", "bytes_per_token", "{:.2f}"),
    ("bytes outside the mapping", "heap_bytes", "{:.0f}"),
    ("open, ms", "open_ms", "{:.2f}"),
    ("first draft, ms", "first_draft_ms", "{:.2f}"),  # after opening: checksums, page faults
    ("draft, us p50", "draft_us_p50", "{:.1f}"),
    ("draft, us p90", "draft_us_p90", "{:.1f}"),
    ("draft, us p99", "draft_us_p99", "{:.1f}"),
    # with a forgotten output that hub nodes still count
    ("draft with forgotten outputs, us p50", "stale_draft_us_p50", "{:.1f}"),
    ("forget an output, us", "forget_us", "{:.1f}"),  # median
    ("settle an output, us", "settle_us", "{:.1f}"),  # median
)
