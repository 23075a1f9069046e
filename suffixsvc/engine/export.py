"""The n-grams of what a namespace keeps, as files of records: counted from the log, in bounded memory."""

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
#: texts that are counted at a time
_BATCH_TOKENS: Final = 1 << 18
#: runs that are merged at a time
_FAN_IN: Final = 64
_MOST_SLOTS: Final = MAX_COUNTED_ORDER + 1
#: files of one export: each is open at the same time, and has a buffer
_MOST_FILES: Final = 64
_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ExportedNgrams:
    """What was counted, and the files, one for each that was wanted."""

    outputs: int
    tokens: int
    files: Sequence[TalliedFile]


class ExportJob:
    """Ends an export from another thread, counting and merging alike."""

    def __init__(self) -> None:
        self.merging = SegmentJob()
        self.cancelled = False

    def cancel(self) -> None:
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
    """Count outputs and write the files that are wanted into a folder.

    Args:
        context_tokens: of each prompt's kept end, that n-grams may begin in.
        job: cancels it.

    Raises:
        InvalidInputError: no such n-grams. StoreError: the disk, or the log. ServiceUnavailableError: it was
            cancelled.
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
    seen = _Seen()
    for batch in _batches(seen.pass_on(outputs), context_tokens):
        if job.cancelled:
            raise SegmentCancelledError("counting was cancelled")
        tokens, ends, contexts = batch
        if len(tokens) > counter.room:
            runs = _spill(counter, runs, folder, job)
        counter.add(tokens, np.array(ends, np.int64), np.array(contexts, np.int64))
    runs = _spill(counter, runs, folder, job)
    names = [folder / f"{i}.records" for i in range(len(wanted))]
    files = tally_files(runs, wanted, names, memory_bytes=_MERGE_BYTES, job=job.merging)
    return ExportedNgrams(seen.outputs, seen.tokens, files)


def _check(wanted: Sequence[RecordFile], context_tokens: int) -> None:
    """Refuse what cannot be counted. InvalidInputError."""
    if not wanted:
        raise InvalidInputError("there is nothing to export", expected="one file or more", got="none")
    if len(wanted) > _MOST_FILES:
        raise InvalidInputError(
            "too many files at a time", expected=f"{_MOST_FILES} or fewer", got=len(wanted)
        )
    for each in wanted:
        if not (0 <= each.min_count < 1 << 64 and 0 <= each.top <= _UINT32 and 0 <= each.least <= _UINT32):
            raise InvalidInputError(
                "a number is none that a cut can have",
                expected=f"min_count, top and least of 0 .. {_UINT32}",
                got=f"{each.min_count}, {each.top} and {each.least}",
            )
        if not 1 <= each.order <= MAX_COUNTED_ORDER:
            raise InvalidInputError("no such n-grams", expected=f"1 .. {MAX_COUNTED_ORDER}", got=each.order)
        if not each.order + each.totals <= each.slots <= _MOST_SLOTS:
            raise InvalidInputError(
                "a record has no such slots",
                expected=f"{each.order + each.totals} .. {_MOST_SLOTS}",
                got=each.slots,
            )
        if not 0 <= each.percent <= 100:
            raise InvalidInputError("percent is none", expected="0 .. 100", got=each.percent)
        if not 0 <= each.max_count < 1 << 31:
            raise InvalidInputError("max_count is no count", expected="an int32", got=each.max_count)
    if not 0 <= context_tokens <= PROMPT_TAIL_TOKENS:
        raise InvalidInputError(
            "so much of a prompt is not kept", expected=f"0 .. {PROMPT_TAIL_TOKENS}", got=context_tokens
        )


class _Seen:
    """Counts what passes."""

    def __init__(self) -> None:
        self.outputs = self.tokens = 0

    def pass_on(self, outputs: Iterable[StoredOutput]) -> Iterator[StoredOutput]:
        for stored in outputs:
            self.outputs += 1
            self.tokens += len(stored.output.token_ids)
            yield stored


def _batches(
    outputs: Iterable[StoredOutput], context_tokens: int
) -> Iterator[tuple[TokenArray, list[int], list[int]]]:
    """Texts joined, where they end, how much of each is context."""
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
    """A number that no run has."""
    return max((int(run.stem) for run in runs), default=0) + 1
