"""Sealed segments: immutable, memory-mapped files that hold outputs and are drafted from in place.

``docs/format.md`` describes the file, ``core/csrc/segment.h`` what is asked of one. Drafting itself asks in
C++; what is here seals, merges, forgets and checks.

    texts of outputs ── build_segment ──> file ── Segment(path) ──> forget, settle, check
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
    "SegmentRung",
    "SegmentStats",
    "SegmentText",
    "build_segment",
    "keep_guarding",
    "merge_segments",
]

#: names that end so are of segments that were never finished; nothing needs them
TEMPORARY_SUFFIX: Final[str] = _ext.SEGMENT_TEMPORARY

#: context lengths that the drafting asks for (kOrders in core/csrc/learner.h)
ORDERS: Final = (1, 2, 3, 4, 5, 6, 8, 11, 16, 24)

_REBUILD = "Delete the file; it is built again from the log."
_KINDS: Final[dict[str, tuple[type[SuffixError], str]]] = {
    "invalid": (InvalidInputError, ""),
    "corrupt": (SegmentCorruptError, _REBUILD),
    "foreign": (StoreForeignError, "Use the version of suffixsvc that wrote the file, or delete it."),
    "full": (StoreFullError, "Free space on the disk; the segments that were there are still whole."),
    "io": (StoreError, "See the system's message."),
    "cancelled": (SegmentCancelledError, ""),
}


@dataclass(frozen=True, slots=True)
class SegmentText:
    """One text of an output, as ``suffixsvc.index.texts.texts_of`` gives them.

    Attributes:
        token_ids: int32[n], n > context.
        context: how many of the first tokens are context only (the prompt's tail): matched, never drafted.
            Only the last 64 of them matter.
        output_id: LSN of the output; an output may have several texts.
    """

    token_ids: TokenArray
    context: int
    output_id: OutputId


@dataclass(frozen=True, slots=True)
class SegmentRung:
    """What a segment knows after one context of the position asked about."""

    length: int  #: tokens of context that all occurrences share
    entries: int  #: different places, forgotten ones included
    total: int  #: occurrences that something followed
    strongest: list[tuple[int, int]]  #: (token, votes), strongest first
    votes: list[int]  #: of the tokens asked for
    newest: tuple[
        int, OutputId
    ]  #: the token that followed last, and in which output; -1 where all are forgotten


def build_segment(
    path: str | os.PathLike[str],
    texts: Iterable[SegmentText],
    *,
    job: SegmentJob | None = None,
    hub_min: int = 0,
) -> None:
    """Write a segment of these texts; the name appears when all of it is on the disk, or not at all.

    Args:
        path: the file; one that is there is replaced.
        texts: in any order. Equal ones are kept once, with all their outputs.
        job: to watch (``done``, 0..1) and cancel from another thread.
        hub_min: contexts seen at least so often are counted beforehand; 0 chooses.

    Raises:
        InvalidInputError, InvalidTokensError: nothing was written.
        StoreFullError, StoreError: the disk; nothing is left behind.
        SegmentCancelledError
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
            "a context length or an output id is not a number that fits",
            expected="unsigned ints",
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

    Byte for byte it is what building it from those outputs would give.

    Memory: a few dozen bytes a text, four bytes a different token id and source.

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


def keep_guarding() -> None:
    """Let pages of segments that cannot be read mark these corrupt, also where another handler of SIGBUS was
    installed since they were opened: to be called now and then. Nothing where no segment was ever opened."""
    _ext.keep_guarding()


def _require_hub_min(hub_min: int) -> int:
    if hub_min != 0 and not 2 <= hub_min < 2**32:
        raise InvalidInputError("hub_min makes no sense", expected="0, or 2 .. 2**32 - 1", got=hub_min)
    return hub_min


class Segment:
    """An open segment. Thread-safe; the map goes when the last reference goes.

    Args:
        path: the file.
        forgotten: outputs that no longer count, from the store's tombstones.

    Raises:
        StoreForeignError: not a segment, or of another version.
        SegmentCorruptError: damaged or cut short.
        StoreError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], forgotten: Iterable[OutputId] = ()) -> None:
        with typed_errors(_KINDS):
            self.native = _ext.Segment.open(path_of(path))
        self.forget(forgotten)

    @property
    def path(self) -> Path:
        return Path(self.native.path)

    @property
    def corrupt(self) -> bool:
        """Whether damage was found; the segment then answers nothing and should be built again."""
        return self.native.corrupt

    def forget(self, outputs: Iterable[OutputId]) -> int:
        """From now on these outputs neither vote nor are drafted from.

        Returns how many of them are here and were not forgotten before. The counts of frequent contexts are
        estimated until :meth:`settle` has corrected them.
        """
        lsns = np.fromiter(outputs, dtype=np.uint64)
        return self.native.forget(lsns) if len(lsns) else 0

    def settle(self, texts: int = 2**62) -> int:
        """Correct the counts for at most so many forgotten texts (in the background); how many are left."""
        return self.native.settle(texts)

    def take_drafted(self) -> list[OutputId]:
        """Outputs that drafts were taken from since the last call, each once, the latest last; not all where
        they are very many."""
        return self.native.take_drafted()

    def look(
        self,
        context: TokenIds,
        orders: Sequence[int] = ORDERS,
        *,
        width: int = 4,
        tokens: TokenIds = (),
    ) -> list[SegmentRung]:
        """What followed the longest known suffix of ``context``, and shorter ones that cover an order.

        Args:
            context: tokens before the position, the last 64 matter.
            orders: ascending context lengths, 1..64, at most 11.
            width: strongest followers wanted, at most 8.
            tokens: whose votes are wanted too.

        Returns: the longest suffix first.
        """
        if len(orders) > 11 or any(not 1 <= n <= 64 for n in orders) or list(orders) != sorted(set(orders)):
            raise InvalidInputError(
                "orders make no sense",
                expected="at most 11 ascending lengths in 1 .. 64",
                got=repr(orders)[:80],
            )
        rungs = self.native.look(
            as_token_array(context), np.array(orders, dtype=np.int32), width, as_token_array(tokens)
        )
        return [
            SegmentRung(length, end - begin, total, strongest, votes, newest)
            for length, begin, end, total, strongest, votes, newest in rungs
        ]

    def time_drafts(self, text: TokenIds, starts: Sequence[int], depth: int = 16) -> FloatArray:
        """Seconds that drafts of ``depth`` tokens behind ``text[:start]`` take: float32[len(starts)].

        For benchmarks: each context is searched and its evidence gathered, without what a session adds; the
        next one has the strongest follower of the longest match. A draft ends early where nothing is known.
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
        """The outputs that are here and not forgotten, ascending."""
        return self.native.outputs()

    def stats(self) -> SegmentStats:
        return self.native.stats()

    def check(self) -> None:
        """Read every byte; SegmentCorruptError names the first broken invariant."""
        problem = self.native.check()
        if problem:
            raise SegmentCorruptError(f"segment file {self.native.path}: {problem}", remedy=_REBUILD)
