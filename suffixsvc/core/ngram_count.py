"""N-gram counting in bounded memory: texts -> runs on disk -> records of llama.cpp's lookup caches.

    counter = NgramCounter(1, 4, largest_token=151_935, memory_bytes=1 << 30)
    counter.add(tokens, ends, contexts)        # while counter.room suffices
    counter.spill("a.run")                     # when it does not, and at the end
    tally_runs(["a.run", ...], [TallyOutput("order2.bin", 2)])

An n-gram of order k is k tokens, oldest first, with the token that followed. Runs of counters of one shape
can be merged: the records are the same bytes for every order of the runs and every distribution of the texts.
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

#: maximum order of n-grams
MAX_COUNTED_ORDER: Final = 16

_AGAIN = "Delete the intermediate files and start the build again."
_KINDS: Final = {
    "invalid": (InvalidInputError, ""),
    "corrupt": (StoreCorruptError, _AGAIN),
    "foreign": (StoreCorruptError, _AGAIN),
    "full": (StoreFullError, "Free space on the disk."),
    "io": (StoreError, "See the message of the system."),
    "cancelled": (SegmentCancelledError, ""),
}


class NgramCounter:
    """Counts the n-grams of texts in about ``memory_bytes``; for one thread at a time.

    Args:
        lowest, highest: orders counted, 1 <= lowest <= highest <= 16.
        largest_token: ids are 0 .. largest_token; a smaller range is faster.
        memory_bytes: size of its arrays; unused parts are not touched.

    Raises:
        InvalidInputError: invalid orders or ids, or too little memory.
        InvalidConfigError: the system does not provide the memory.
    """

    def __init__(
        self, lowest: int, highest: int, *, largest_token: int = MAX_TOKEN_ID, memory_bytes: int
    ) -> None:
        try:
            with typed_errors(_KINDS):
                self._counter = _ext.NgramCounter(lowest, highest, largest_token, memory_bytes)
        except MemoryError:
            raise InvalidConfigError(
                "memory_bytes must be available", got=f"{memory_bytes >> 20} MiB",
                remedy="Reduce --memory.",
            ) from None  # fmt: skip

    def add(self, tokens: TokenArray, ends: npt.NDArray[np.int64], contexts: npt.NDArray[np.int64]) -> None:
        """Count texts, all or none.

        Args:
            tokens: int32[n], the concatenated texts; n <= :attr:`room`.
            ends: int64[m], ascending to n: end of each text.
            contexts: int64[m]: number of leading tokens that are context: n-grams may begin in it, but its
                tokens do not count as followers.

        Raises:
            InvalidInputError: an id beyond ``largest_token`` (``got`` has its position), more tokens than
                there is room for, or inconsistent ends or contexts.
            TypeError: arrays of another type, or not contiguous.
        """
        with typed_errors(_KINDS):
            self._counter.add(tokens, ends, contexts)

    @property
    def room(self) -> int:
        """Number of tokens that are guaranteed to fit before the next spill."""
        return self._counter.room

    @property
    def tokens(self) -> int:
        """Tokens added since the last spill, context included."""
        return self._counter.tokens

    def spill(self, path: str | os.PathLike[str]) -> None:
        """Write the counts as a run, durably, and empty the counter.

        Raises:
            StoreFullError, StoreError: disk errors; no counts are lost, and no file is left.
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
    """Write records of n-grams whose oldest token is in first_token .. end_token - 1, one file per output.

    Returns:
        The outputs with their statistics: ``records``, ``pairs``, ``bytes``, ``count_sum`` (as written),
        ``occurrences`` (before pruning).

    Raises:
        InvalidInputError: an order that the runs do not count, or runs of different shape.
        StoreCorruptError, StoreFullError, StoreError: file errors; no output is left.
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
    """Run :func:`tally_runs` with one path per requested file. Errors as there."""
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
    """Return token ids that divide the runs into about equal parts, for merging in parallel.

    Parts are divided by the oldest token; the ids are ascending and fewer than ``parts``. Errors as in
    :func:`tally_runs`.
    """
    with typed_errors(_KINDS):
        return _ext.split_runs([path_of(run) for run in runs], parts)


def check_run(path: str | os.PathLike[str]) -> None:
    """Read a run and verify its checksum.

    Raises:
        StoreCorruptError, StoreError
    """
    with typed_errors(_KINDS):
        _ext.check_run(path_of(path))


def run_tokens(path: str | os.PathLike[str]) -> int:
    """Return the number of tokens that a run counts, context included. Errors as in :func:`check_run`."""
    with typed_errors(_KINDS):
        return _ext.run_tokens(path_of(path))


def record_starts(words: TokenArray, head: int) -> npt.NDArray[np.int64]:
    """Return the offsets of a lookup cache's records and the end of the last whole one, int64[m + 1].

    Offsets count words.

    Args:
        words: int32[k], the file.
        head: words of a record before its followers; the last of them is the number of followers.
    """
    return _ext.record_starts(np.ascontiguousarray(words, np.int32), head)
