"""Sealed segments: immutable, memory-mapped files of outputs that sessions draft from in place.

``docs/format.md`` describes the file, ``csrc/segment/segment.h`` the queries. Drafting queries segments in
C++; this module builds, merges and checks them, and forgets outputs.

    texts of outputs ── build_segment ──> file ── Segment(path) ──> forget, correct_hubs, check
                                          file ┐
                                          file ┴─ merge_segments ──> one file without what was forgotten
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.core import _ext
from suffixsvc.core._ext import SegmentJob, SegmentStats
from suffixsvc.core.faults import path_of, typed_errors
from suffixsvc.errors import (
    InvalidInputError,
    SegmentCancelledError,
    SegmentCorruptError,
    StoreError,
    StoreForeignError,
    StoreFullError,
    SuffixError,
)
from suffixsvc.types import FloatArray, OutputId, TokenArray, TokenIds
from suffixsvc.values import as_token_array

__all__ = [
    "ORDERS",
    "TEMPORARY_SUFFIX",
    "Segment",
    "SegmentJob",
    "SegmentLevel",
    "SegmentStats",
    "SegmentText",
    "build_segment",
    "merge_segments",
    "reinstall_sigbus_handler",
]

#: suffix of the names of unfinished segments, which may be removed
TEMPORARY_SUFFIX: Final[str] = _ext.SEGMENT_TEMPORARY

#: context lengths that drafting queries (kOrders in core/csrc/draft/learner.h)
ORDERS: Final = (1, 2, 3, 4, 5, 6, 8, 11, 16, 24)

_REBUILD = "Delete the file; it is built again from the log."
_KINDS: Final[dict[str, tuple[type[SuffixError], str]]] = {
    "invalid": (InvalidInputError, ""),
    "corrupt": (SegmentCorruptError, _REBUILD),
    "foreign": (StoreForeignError, "Use the version of suffixsvc that wrote the file, or delete it."),
    "full": (StoreFullError, "Free space on the disk; existing segments are intact."),
    "io": (StoreError, "See the message of the system."),
    "cancelled": (SegmentCancelledError, ""),
}


@dataclass(frozen=True, slots=True)
class SegmentText:
    """One text of an output, as ``suffixsvc.index.texts.texts_of`` returns them.

    Attributes:
        token_ids: int32[n], n > context.
        context: number of leading tokens that are context only (the end of the prompt): matched, never
            drafted. Only the last 64 of them matter.
        output_id: LSN of the output; an output may have several texts.
    """

    token_ids: TokenArray
    context: int
    output_id: OutputId


@dataclass(frozen=True, slots=True)
class SegmentLevel:
    """Followers of one context of the queried position."""

    length: int  #: tokens of context that all occurrences share
    entries: int  #: distinct positions, forgotten ones included
    total: int  #: occurrences with a follower
    strongest: list[tuple[int, int]]  #: (token, votes), strongest first
    votes: list[int]  #: of the requested tokens
    newest: tuple[int, OutputId]  #: the last follower and its output; -1 if all are forgotten


def build_segment(
    path: str | os.PathLike[str],
    texts: Iterable[SegmentText],
    *,
    job: SegmentJob | None = None,
    hub_min: int = 0,
) -> None:
    """Write a segment of these texts; the name appears when all of it is on disk, or not at all.

    Args:
        path: the file; an existing one is replaced.
        texts: in any order. Equal ones are stored once, with all their outputs.
        job: progress (``done``, 0..1) and cancellation, for other threads.
        hub_min: contexts seen at least this often get precomputed counts; 0: chosen by size.

    Raises:
        InvalidInputError, InvalidTokensError: nothing was written.
        StoreFullError, StoreError: disk errors; no file is left.
        SegmentCancelledError: the job was cancelled.
    """
    arrays, lengths, contexts, lsns = [], [], [], []
    for text in texts:
        arrays.append(as_token_array(text.token_ids))
        lengths.append(len(arrays[-1]))
        contexts.append(text.context)
        lsns.append(text.output_id)
    try:
        columns = (
            np.array(lengths, dtype=np.uint64),
            np.array(contexts, dtype=np.uint32),
            np.array(lsns, dtype=np.uint64),
        )
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidInputError(
            "context lengths and output ids must be unsigned ints",
            got=str(error),
        ) from None
    tokens = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    with typed_errors(_KINDS):
        _ext.build_segment(
            path_of(path), tokens, *columns, _require_hub_min(hub_min), SegmentJob() if job is None else job
        )


def merge_segments(
    path: str | os.PathLike[str],
    sources: Sequence[Segment],
    *,
    job: SegmentJob | None = None,
    hub_min: int = 0,
) -> None:
    """Write one segment with all outputs of the sources that are not forgotten.

    The bytes are those of a segment that is built from these outputs.

    Memory: a few dozen bytes per text, four bytes per distinct token id and source.

    Raises:
        SegmentCorruptError: a source is damaged.
        StoreFullError, StoreError, SegmentCancelledError: as for :func:`build_segment`.
    """
    with typed_errors(_KINDS):
        _ext.merge_segments(
            path_of(path),
            [source.native for source in sources],
            _require_hub_min(hub_min),
            SegmentJob() if job is None else job,
        )


def reinstall_sigbus_handler() -> None:
    """Install the SIGBUS handler in front of handlers that were installed after it.

    The handler marks segments with unreadable pages corrupt. To be called periodically; does nothing before
    the first segment is opened.
    """
    _ext.reinstall_sigbus_handler()


def _require_hub_min(hub_min: int) -> int:
    if hub_min != 0 and not 2 <= hub_min < 2**32:
        raise InvalidInputError("hub_min must be 0 or in 2 .. 2**32 - 1", got=hub_min)
    return hub_min


class Segment:
    """An open segment. Thread-safe; unmapped when the last reference is released.

    Args:
        path: the file.
        forgotten: forgotten outputs, from the store's tombstones.

    Raises:
        StoreForeignError: not a segment, or of another version.
        SegmentCorruptError: damaged or truncated.
        StoreError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], forgotten: Iterable[OutputId] = ()) -> None:
        with typed_errors(_KINDS):
            self.native = _ext.Segment.open(path_of(path))
        self.forget(forgotten)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.native.path)

    @property
    def corrupt(self) -> bool:
        """Whether damage was found; the segment then returns nothing and should be built again."""
        return self.native.corrupt

    def forget(self, outputs: Iterable[OutputId]) -> int:
        """Exclude outputs from votes and drafts.

        Returns the number of them that are in this segment and were not forgotten before. Counts of frequent
        contexts are estimated until :meth:`correct_hubs` has corrected them.
        """
        lsns = np.fromiter(outputs, dtype=np.uint64)
        return self.native.forget(lsns) if len(lsns) else 0

    def correct_hubs(self, texts: int = 2**62) -> int:
        """Subtract up to ``texts`` forgotten texts from the counts of hubs; return the number left."""
        return self.native.correct_hubs(texts)

    def take_recently_used(self) -> list[OutputId]:
        """Return the outputs that drafts were taken from since the last call, each once, the latest last.

        If there were more than 1024, the oldest may be missing.
        """
        return self.native.take_recently_used()

    def query(
        self,
        context: TokenIds,
        orders: Sequence[int] = ORDERS,
        *,
        width: int = 4,
        tokens: TokenIds = (),
    ) -> list[SegmentLevel]:
        """Return the followers of the longest known suffix of ``context`` and of those that cover an order.

        Args:
            context: tokens before the position; the last 64 matter.
            orders: ascending context lengths, 1..64, at most 11.
            width: maximum number of strongest followers, at most 8.
            tokens: tokens whose votes are returned, too.

        Returns:
            The levels, the longest suffix first.

        Raises:
            InvalidInputError: invalid orders.
        """
        if len(orders) > 11 or any(not 1 <= n <= 64 for n in orders) or list(orders) != sorted(set(orders)):
            raise InvalidInputError(
                "orders must be at most 11 ascending lengths in 1 .. 64",
                got=repr(orders)[:80],
            )
        levels = self.native.query(
            as_token_array(context), np.array(orders, dtype=np.int32), width, as_token_array(tokens)
        )
        return [
            SegmentLevel(length, end - begin, total, strongest, votes, newest)
            for length, begin, end, total, strongest, votes, newest in levels
        ]

    def time_drafts(self, text: TokenIds, starts: Sequence[int], depth: int = 16) -> FloatArray:
        """Measure the seconds that drafts of ``depth`` tokens after ``text[:start]`` take.

        Returns float32[len(starts)]. For benchmarks: each context is searched and its evidence gathered,
        without the work of a session; the next context is extended by the strongest follower of the longest
        match. A draft ends early if there is no follower.
        """
        return np.array(
            self.native.time_drafts(
                as_token_array(text),
                np.array(starts, dtype=np.uint64),
                depth,
                np.array(ORDERS, dtype=np.int32),
            ),
            dtype=np.float32,
        )

    def outputs(self) -> list[OutputId]:
        """Return the outputs that are not forgotten, ascending."""
        return self.native.outputs()

    def stats(self) -> SegmentStats:
        """Return sizes and counts."""
        return self.native.stats()

    def check(self) -> None:
        """Verify every byte.

        Raises:
            SegmentCorruptError: names the first violated invariant.
        """
        problem = self.native.check()
        if problem:
            raise SegmentCorruptError(f"segment file {self.native.path}: {problem}", remedy=_REBUILD)
