"""Export of n-gram counts as files of records, counted from the log in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from suffixsvc.errors import InvalidInputError, SegmentCancelledError, ServiceUnavailableError
from suffixsvc.index.texts import texts_of
from suffixsvc.lookup_records import RecordFile, TalliedFile
from suffixsvc.types import StoredOutput, TokenArray

__all__ = ["ExportJob", "ExportedNgrams", "export_ngrams"]

_COUNT_BYTES: Final = 128 << 20
_MERGE_BYTES: Final = 32 << 20
#: tokens counted at a time
_BATCH_TOKENS: Final = 1 << 18
#: runs merged at a time
_FAN_IN: Final = 64
_MAX_SLOTS: Final = MAX_COUNTED_ORDER + 1
#: files of one export: all are open at the same time, each with a buffer
_MAX_FILES: Final = 64
_UINT32: Final = 2**32 - 1


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
    totals = _Totals()
    for batch in _batches(totals.count(outputs), context_tokens):
        if job.cancelled:
            raise SegmentCancelledError("counting was cancelled")
        tokens, ends, contexts = batch
        if len(tokens) > counter.room:
            runs = _spill(counter, runs, folder, job)
        counter.add(tokens, np.array(ends, np.int64), np.array(contexts, np.int64))
    runs = _spill(counter, runs, folder, job)
    names = [folder / f"{i}.records" for i in range(len(wanted))]
    files = tally_files(runs, wanted, names, memory_bytes=_MERGE_BYTES, job=job.merging)
    return ExportedNgrams(totals.outputs, totals.tokens, files)


def _check(wanted: Sequence[RecordFile], context_tokens: int) -> None:
    """Validate the arguments of an export. InvalidInputError."""
    if not 1 <= len(wanted) <= _MAX_FILES:
        raise InvalidInputError(f"files of one export must be 1 to {_MAX_FILES}", got=len(wanted))
    for each in wanted:
        if not (0 <= each.min_count < 1 << 64 and 0 <= each.top <= _UINT32 and 0 <= each.least <= _UINT32):
            raise InvalidInputError(
                "min_count, top and least must be counts",
                expected=f"0 .. {_UINT32}",
                got=f"{each.min_count}, {each.top} and {each.least}",
            )
        if not 1 <= each.order <= MAX_COUNTED_ORDER:
            raise InvalidInputError(f"order must be 1 to {MAX_COUNTED_ORDER}", got=each.order)
        if not each.order + each.totals <= each.slots <= _MAX_SLOTS:
            raise InvalidInputError(
                f"slots must be {each.order + each.totals} to {_MAX_SLOTS} for order {each.order}",
                got=each.slots,
            )
        if not 0 <= each.percent <= 100:
            raise InvalidInputError("percent must be 0 to 100", got=each.percent)
        if not 0 <= each.max_count < 1 << 31:
            raise InvalidInputError("max_count must be an int32 >= 0", got=each.max_count)
    if not 0 <= context_tokens <= PROMPT_TAIL_TOKENS:
        raise InvalidInputError(f"context_tokens must be 0 to {PROMPT_TAIL_TOKENS}", got=context_tokens)


class _Totals:
    """Counts the outputs of an iteration."""

    def __init__(self) -> None:
        self.outputs = self.tokens = 0

    def count(self, outputs: Iterable[StoredOutput]) -> Iterator[StoredOutput]:
        for stored in outputs:
            self.outputs += 1
            self.tokens += len(stored.output.token_ids)
            yield stored


def _batches(
    outputs: Iterable[StoredOutput], context_tokens: int
) -> Iterator[tuple[TokenArray, list[int], list[int]]]:
    """Batches of concatenated texts: tokens, the end of each text, and its number of context tokens."""
    parts: list[TokenArray] = []
    ends: list[int] = []
    contexts: list[int] = []
    size = 0
    for stored in outputs:
        for text, context in texts_of(stored.output):
            kept = min(context, context_tokens)
            parts.append(text[context - kept :])
            size += len(parts[-1])
            ends.append(size)
            contexts.append(kept)
        if size >= _BATCH_TOKENS:
            yield np.concatenate(parts), ends, contexts
            parts, ends, contexts, size = [], [], [], 0
    if parts:
        yield np.concatenate(parts), ends, contexts


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
