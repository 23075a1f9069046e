"""Benchmark of sealed segments: building, merging, opening, bytes per token, drafts, forgetting.

    suffixsvc bench segment --sizes 1M,10M --json

Texts are outputs of 500 tokens made of phrases with a skewed frequency distribution (the number of phrases
grows with the size), a twentieth of the tokens replaced. A draft has 16 positions, each with a context that
is one token longer, in texts that the segment does not contain: all shorter contexts are looked up, the votes
of their followers are collected, and the strongest follower of the longest context is the next token.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suffixsvc.core.segments import Segment, SegmentText, build_segment, merge_segments
from suffixsvc.types import TokenArray
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.tables import Grid

__all__ = [
    "SegmentFigures",
    "TextMaker",
    "measure_segment",
    "parse_size",
    "run_segment_bench",
    "segment_grid",
]

OUTPUT_TOKENS = 500
VOCABULARY = 50_000
DEPTH = 16
#: tokens of a segment that is built; larger sizes are merged from several
CHUNK = 10_000_000


@dataclass(frozen=True, slots=True)
class SegmentFigures:
    """Results of one size. Draft times are those of the segment's index alone, without a session."""

    tokens: int
    build_us_per_token: float
    merge_us_per_token: float  #: 0 without a merge
    bytes_per_token: float  #: of the mapped file
    heap_bytes: int  #: outside the mapping
    open_ms: float
    first_draft_ms: float  #: after opening: checksums, page faults
    draft_us_p50: float
    draft_us_p90: float
    draft_us_p99: float
    stale_draft_us_p50: float  #: with a forgotten output that hub nodes still count
    forget_us: float  #: per output, median
    settle_us: float  #: per output, median


class TextMaker:
    """Generator of outputs; the same seed gives the same texts."""

    def __init__(self, tokens: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        lengths = self._random.integers(4, 44, size=tokens // 200 + 100)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._pool = self._skewed(VOCABULARY, int(self._starts[-1]))

    def _skewed(self, most: int, n: int) -> TokenArray:
        """Log-uniform in 0 .. most - 1: value k with a frequency proportional to 1 / k (Zipf 1949)."""
        values: TokenArray = (np.exp(self._random.random(n) * np.log(most)) - 1).astype(np.int32)
        return np.minimum(values, most - 1)

    def text(self, tokens: int) -> TokenArray:
        """int32[tokens], phrase after phrase."""
        picks = self._skewed(len(self._starts) - 1, tokens // 10 + 100)
        pieces: list[TokenArray] = []
        have = 0
        for pick in picks:
            pieces.append(self._pool[self._starts[pick] : self._starts[pick + 1]])
            have += len(pieces[-1])
            if have >= tokens:
                break
        text = np.concatenate(pieces)[:tokens]
        replaced = self._random.random(tokens) < 0.05
        text[replaced] = self._skewed(VOCABULARY, int(replaced.sum()))
        return text

    def outputs(self, tokens: int, first_id: int) -> Iterator[SegmentText]:
        """Outputs of 500 tokens with ids from ``first_id`` on."""
        whole = self.text(tokens // OUTPUT_TOKENS * OUTPUT_TOKENS).reshape(-1, OUTPUT_TOKENS)
        for i, output in enumerate(whole):
            yield SegmentText(output, 0, first_id + i)


def measure_segment(tokens: int, folder: Path, seed: int = 1) -> SegmentFigures:
    """Seal ``tokens`` tokens (at least 100 outputs) below ``folder`` and measure; the files are removed."""
    maker = TextMaker(tokens, seed)
    path = folder / "whole.seg"
    parts: list[Path] = []
    build_s = merge_s = 0.0
    for start in range(0, tokens, CHUNK):
        texts = list(maker.outputs(min(CHUNK, tokens - start), 1 + start // OUTPUT_TOKENS))
        parts.append(folder / f"part{len(parts)}.seg")
        began = time.perf_counter()
        build_segment(parts[-1], texts)
        build_s += time.perf_counter() - began
    if len(parts) > 1:
        sources = [Segment(part) for part in parts]
        began = time.perf_counter()
        merge_segments(path, sources)
        merge_s = time.perf_counter() - began
        for part in parts:
            part.unlink()
    else:
        parts[0].rename(path)
    began = time.perf_counter()
    segment = Segment(path)
    open_s = time.perf_counter() - began
    unseen = maker.text(30_000)
    starts = list(range(64, len(unseen) - DEPTH, 24))
    first = segment.time_drafts(unseen, starts[:1], DEPTH)
    segment.time_drafts(unseen, starts, DEPTH)
    drafts = segment.time_drafts(unseen, starts, DEPTH) * 1e6
    forgets, settles = [], []
    for output in range(1, 51):
        began = time.perf_counter()
        segment.forget([output])
        forgets.append(time.perf_counter() - began)
        if output == 50:
            break
        began = time.perf_counter()
        segment.correct_hubs()
        settles.append(time.perf_counter() - began)
    stale = segment.time_drafts(unseen, starts, DEPTH) * 1e6
    stats = segment.stats()
    path.unlink()
    return SegmentFigures(
        tokens=tokens,
        build_us_per_token=build_s / tokens * 1e6,
        merge_us_per_token=merge_s / tokens * 1e6,
        bytes_per_token=stats.file_bytes / stats.tokens,
        heap_bytes=stats.resident_bytes,
        open_ms=open_s * 1e3,
        first_draft_ms=float(first[0]) * 1e3,
        draft_us_p50=float(np.percentile(drafts, 50)),
        draft_us_p90=float(np.percentile(drafts, 90)),
        draft_us_p99=float(np.percentile(drafts, 99)),
        stale_draft_us_p50=float(np.percentile(stale, 50)),
        forget_us=float(np.median(forgets)) * 1e6,
        settle_us=float(np.median(settles)) * 1e6,
    )


def parse_size(size: str) -> int:
    """Parse a size: ``10M`` -> 10,000,000.

    Raises:
        ValueError: less than 50,000.
    """
    factor = {"K": 1_000, "M": 1_000_000}.get(size[-1:].upper(), 1)
    tokens = int(size[:-1] if factor > 1 else size) * factor
    if tokens < 50_000:
        raise ValueError(f"--sizes must be at least 50,000 tokens; got {size!r}")
    return tokens


def run_segment_bench(
    sizes: Sequence[int],
    seed: int = 1,
    folder: Path | None = None,
    notify: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Measure each size: {"provenance", "seed", "sizes": [SegmentFigures as a dict]}.

    Args:
        folder: parent of the scratch folders, about 20 bytes per token; None: the default for temporary
            files.
        notify: called with the current task and the completed fraction of the run.
    """
    origin = provenance()
    figures = []
    for i, tokens in enumerate(sizes):
        if notify is not None:
            notify(f"a segment of {tokens / 1e6:g}M tokens", sum(sizes[:i]) / sum(sizes))
        with tempfile.TemporaryDirectory(prefix="sfx-bench-", dir=folder) as scratch:
            figures.append(measure_segment(tokens, Path(scratch), seed))
    return {"provenance": origin.as_dict(), "seed": seed, "sizes": [asdict(f) for f in figures]}


def segment_grid(results: Mapping[str, Any]) -> Grid:
    """One column per size."""
    sizes = results["sizes"]
    grid = Grid(["a sealed segment", *(f"{at['tokens'] / 1e6:g}M tokens" for at in sizes)])
    grid.rows += [
        [label, *(form.format(at[key]) if at[key] else "-" for at in sizes)] for label, key, form in _ROWS
    ]
    return grid


_ROWS = (
    ("build, us per token", "build_us_per_token", "{:.2f}"),
    ("merge, us per token", "merge_us_per_token", "{:.2f}"),
    ("mapped bytes per token", "bytes_per_token", "{:.2f}"),
    ("bytes outside the mapping", "heap_bytes", "{:.0f}"),
    ("open, ms", "open_ms", "{:.2f}"),
    ("first draft, ms", "first_draft_ms", "{:.2f}"),
    ("draft, us p50", "draft_us_p50", "{:.1f}"),
    ("draft, us p90", "draft_us_p90", "{:.1f}"),
    ("draft, us p99", "draft_us_p99", "{:.1f}"),
    ("draft with forgotten outputs, us p50", "stale_draft_us_p50", "{:.1f}"),
    ("forget an output, us", "forget_us", "{:.1f}"),
    ("settle an output, us", "settle_us", "{:.1f}"),
)
