"""Counting n-grams in bounded memory: texts -> runs on the disk -> records of llama.cpp's lookup caches.

    counter = NgramCounter(1, 4, largest_token=151_935, memory_bytes=1 << 30)
    counter.add(tokens, ends, contexts)        while counter.room suffices
    counter.spill("a.run")                     else, and at the end
    tally_runs(["a.run", ...], [TallyOutput("order2.bin", 2)])

An n-gram of order k is k tokens, oldest first, and what followed it. Runs of counters of one shape add up, in
whatever order and however the texts were dealt out to them: the records are the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core import _ext
from suffixsvc.core._ext import SegmentJob, TallyOutput
from suffixsvc.core.faults import path_of, typed_errors
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    SegmentCancelledError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
)
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc.types import TokenArray
from suffixsvc.values import MAX_TOKEN_ID

__all__ = [
    "MAX_COUNTED_ORDER",
    "NgramCounter",
    "SegmentJob",
    "TallyOutput",
    "check_run",
    "combine_runs",
    "record_starts",
    "run_tokens",
    "split_runs",
    "tally_files",
    "tally_runs",
]

#: the longest n-grams that can be counted
MAX_COUNTED_ORDER: Final = 16

_AGAIN = "Start the build again without what it left behind."
_KINDS: Final = {
    "invalid": (InvalidInputError, ""),
    "corrupt": (StoreCorruptError, _AGAIN),
    "foreign": (StoreCorruptError, _AGAIN),
    "full": (StoreFullError, "Free space on the disk."),
    "io": (StoreError, "See the system's message."),
    "cancelled": (SegmentCancelledError, ""),
}


class NgramCounter:
    """Counts the n-grams of texts in about ``memory_bytes``; for one thread at a time.

    Args:
        lowest, highest: orders counted, 1 <= lowest <= highest <= 16.
        largest_token: ids are 0 .. largest_token; the fewer, the faster.
        memory_bytes: of its arrays; what is not used is not touched.

    Raises:
        InvalidInputError: no such range, or too little memory. InvalidConfigError: more memory than there is.
    """

    def __init__(
        self, lowest: int, highest: int, *, largest_token: int = MAX_TOKEN_ID, memory_bytes: int
    ) -> None:
        try:
            with typed_errors(_KINDS):
                self._counter = _ext.NgramCounter(lowest, highest, largest_token, memory_bytes)
        except MemoryError:
            raise InvalidConfigError(
                "the system does not give so much memory", got=f"{memory_bytes >> 20} MiB",
                remedy="Give less with --memory.",
            ) from None  # fmt: skip

    def add(self, tokens: TokenArray, ends: npt.NDArray[np.int64], contexts: npt.NDArray[np.int64]) -> None:
        """Count texts, all or none.

        Args:
            tokens: int32[n], the texts one behind the other; n <= :attr:`room`.
            ends: int64[m], rising to n: where each text ends.
            contexts: int64[m]: how many of its first tokens are context, which n-grams may begin in and
                which is not counted as what followed.

        Raises:
            InvalidInputError: an id beyond ``largest_token`` (it says where), more tokens than there is room
                for, ends or contexts that make no sense.
            TypeError: arrays of another type, or not contiguous.
        """
        with typed_errors(_KINDS):
            self._counter.add(tokens, ends, contexts)

    @property
    def room(self) -> int:
        """Tokens that fit for sure before the next spill."""
        return self._counter.room

    @property
    def tokens(self) -> int:
        """Tokens added since the last spill, context included."""
        return self._counter.tokens

    def spill(self, path: str | os.PathLike[str]) -> None:
        """Write what was counted as a run, durably, and begin anew.

        Raises:
            StoreFullError, StoreError: the disk; nothing counted is lost, no file is left.
        """
        with typed_errors(_KINDS):
            self._counter.spill(path_of(path))


def tally_runs(
    runs: Sequence[str | os.PathLike[str]],
    outputs: Sequence[TallyOutput],
    *,
    first_token: int = 0,
    end_token: int = MAX_TOKEN_ID + 1,
    memory_bytes: int = 64 << 20,
    job: SegmentJob | None = None,
) -> list[TallyOutput]:
    """Write the records of n-grams whose oldest token is in first_token .. end_token - 1, a file an output.

    Returns:
        The outputs with what was found: ``records``, ``pairs``, ``bytes``, ``count_sum`` (as written),
        ``occurrences`` (before cuts).

    Raises:
        InvalidInputError: an order that the runs do not count, or runs of different shape.
        StoreCorruptError, StoreFullError, StoreError: files; none is left.
        SegmentCancelledError: the job was cancelled.
    """
    with typed_errors(_KINDS):
        names = [path_of(run) for run in runs]
        return _ext.tally_runs(
            names, first_token, end_token, memory_bytes, list(outputs), job or SegmentJob()
        )


def tally_files(
    runs: Sequence[str | os.PathLike[str]],
    wanted: Sequence[RecordFile],
    paths: Sequence[Path],
    *,
    first_token: int = 0,
    end_token: int = MAX_TOKEN_ID + 1,
    memory_bytes: int = 64 << 20,
    job: SegmentJob | None = None,
) -> list[TalliedFile]:
    """:func:`tally_runs` with a path for each file that is wanted."""
    found = tally_runs(
        runs,
        [TallyOutput(path_of(path), **asdict(each)) for path, each in zip(paths, wanted, strict=True)],
        first_token=first_token,
        end_token=end_token,
        memory_bytes=memory_bytes,
        job=job,
    )
    return [
        TalliedFile(path, each.records, each.pairs, each.bytes, each.count_sum, each.occurrences)
        for path, each in zip(paths, found, strict=True)
    ]


def combine_runs(
    runs: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    memory_bytes: int = 64 << 20,
    job: SegmentJob | None = None,
) -> None:
    """Merge runs into one. Errors as in :func:`tally_runs`."""
    with typed_errors(_KINDS):
        _ext.combine_runs([path_of(run) for run in runs], path_of(path), memory_bytes, job or SegmentJob())


def split_runs(runs: Sequence[str | os.PathLike[str]], parts: int) -> list[int]:
    """Token ids that divide the runs into about equal parts by the oldest token, for merging the parts side
    by side; rising, fewer than ``parts``."""
    with typed_errors(_KINDS):
        return _ext.split_runs([path_of(run) for run in runs], parts)


def check_run(path: str | os.PathLike[str]) -> None:
    """Read a run and compare its checksum. StoreCorruptError, StoreError."""
    with typed_errors(_KINDS):
        _ext.check_run(path_of(path))


def run_tokens(path: str | os.PathLike[str]) -> int:
    """How many tokens a run counts, context included. Errors as in :func:`check_run`."""
    with typed_errors(_KINDS):
        return _ext.run_tokens(path_of(path))


def record_starts(words: TokenArray, head: int) -> npt.NDArray[np.int64]:
    """Where the records of a lookup cache begin, and where the last whole one ends, int64[m + 1], in words.

    Args:
        words: int32[k], the file.
        head: words of a record before its followers, the last of them their number.
    """
    return _ext.record_starts(np.ascontiguousarray(words, np.int32), head)
