"""Export of n-gram counts as files of records, counted from the log in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.core.ngram_count import (
    MAX_COUNTED_ORDER,
    NgramCounter,
    SegmentJob,
    combine_runs,
    tally_files,
)
from suffixsvc.engine.base.log_rows import batches
from suffixsvc.errors import InvalidInputError, SegmentCancelledError, ServiceUnavailableError
from suffixsvc.index.texts import positions_of, texts_of
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc.types import StoredOutput
from suffixsvc.values import as_int

_COUNT_BYTES: Final = 128 << 20
_MERGE_BYTES: Final = 32 << 20
#: tokens counted at a time
_BATCH_TOKENS: Final = 1 << 18
#: runs merged at a time
_FAN_IN: Final = 64
_MAX_SLOTS: Final = MAX_COUNTED_ORDER + 1
#: files of one export: all are open at the same time, each with a buffer
_MAX_FILES: Final = 64
#: valid values of the fields of a RecordFile
_RANGES: Final = (
    ("min_count", 0, 2**64 - 1),
    ("top", 0, 2**32 - 1),
    ("least", 0, 2**32 - 1),
    ("order", 1, MAX_COUNTED_ORDER),
    ("percent", 0, 100),
    ("max_count", 0, 2**31 - 1),
)


@dataclass(frozen=True, slots=True)
class ExportedNgrams:
    """Counts of an export, and one file for each selection."""

    outputs: int
    tokens: int
    files: Sequence[TalliedFile]


class ExportJob:
    """Handle that cancels an export from another thread.

    Attributes:
        merging: job of the merge phase.
        cancelled: :meth:`cancel` was called.
    """

    def __init__(self) -> None:
        self.merging = SegmentJob()
        self.cancelled = False

    def cancel(self) -> None:
        """End the export with ServiceUnavailableError, while it counts or merges."""
        self.cancelled = True
        self.merging.cancel()


def export_ngrams(
    outputs: Iterable[StoredOutput],
    wanted: Sequence[RecordFile],
    folder: Path,
    *,
    context_tokens: int = 0,
    job: ExportJob | None = None,
) -> ExportedNgrams:
    """Count the n-grams of outputs and write one file for each selection into a folder.

    Args:
        outputs: outputs to count.
        wanted: the n-grams of each file.
        folder: existing folder of the files.
        context_tokens: tokens of each stored prompt tail in which n-grams may begin.
        job: cancels the export.

    Raises:
        InvalidInputError: an argument is invalid.
        StoreError: the log or the folder failed.
        ServiceUnavailableError: the export was cancelled.
    """
    _check(wanted, context_tokens)
    try:
        return _export(outputs, wanted, folder, context_tokens, job or ExportJob())
    except SegmentCancelledError:
        raise ServiceUnavailableError("the export was cancelled") from None


def _export(
    outputs: Iterable[StoredOutput],
    wanted: Sequence[RecordFile],
    folder: Path,
    context_tokens: int,
    job: ExportJob,
) -> ExportedNgrams:
    orders = [each.order for each in wanted]
    counter = NgramCounter(min(orders), max(orders), memory_bytes=_COUNT_BYTES)
    runs: list[Path] = []
    number = tokens = 0
    for batch, _ in batches(outputs, _BATCH_TOKENS, positions_of):
        if job.cancelled:
            raise SegmentCancelledError("counting was cancelled")
        number += len(batch)
        tokens += sum(len(stored.output.token_ids) for stored in batch)
        texts = [text for stored in batch for text in texts_of(stored.output)]
        kept = [min(context, context_tokens) for _, context in texts]
        parts = [text[context - keep :] for (text, context), keep in zip(texts, kept, strict=True)]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        if ends[-1] > counter.room:
            runs = _spill(counter, runs, folder, job)
        counter.add(np.concatenate(parts), ends, np.array(kept, np.int64))
    runs = _spill(counter, runs, folder, job)
    names = [folder / f"{i}.records" for i in range(len(wanted))]
    files = tally_files(runs, wanted, names, memory_bytes=_MERGE_BYTES, job=job.merging)
    return ExportedNgrams(number, tokens, files)


def _check(wanted: Sequence[RecordFile], context_tokens: int) -> None:
    """Validate the arguments of an export. InvalidInputError."""
    if not 1 <= len(wanted) <= _MAX_FILES:
        raise InvalidInputError(f"files of one export must be 1 to {_MAX_FILES}", got=len(wanted))
    for each in wanted:
        for name, low, high in _RANGES:
            as_int(name, getattr(each, name), low, high)
        as_int("slots", each.slots, each.order + each.totals, _MAX_SLOTS)
    as_int("context_tokens", context_tokens, 0, PROMPT_TAIL_TOKENS)


def _spill(counter: NgramCounter, runs: Sequence[Path], folder: Path, job: ExportJob) -> list[Path]:
    run = folder / f"{_next(runs)}.run"
    counter.spill(run)
    spilled = [*runs, run]
    if len(spilled) < _FAN_IN:
        return spilled
    merged = folder / f"{_next(spilled)}.run"
    combine_runs(spilled, merged, memory_bytes=_MERGE_BYTES, job=job.merging)
    for each in spilled:
        each.unlink()
    return [merged]


def _next(runs: Sequence[Path]) -> int:
    """A number above that of every run."""
    return max((int(run.stem) for run in runs), default=0) + 1
