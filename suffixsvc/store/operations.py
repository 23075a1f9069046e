"""What the writer thread is asked to do, whole or slice by slice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from suffixsvc.interrupts import new_future
from suffixsvc.store.identity import note_pending
from suffixsvc.store.identity_records import Range
from suffixsvc.store.listeners import call_listener
from suffixsvc.store.tables import WriteView
from suffixsvc.store.validation import CheckedOutput
from suffixsvc.types import AppendedIds, NamespaceRecord, OutputId

__all__ = ["SLICE_BYTES", "SLICE_ROWS", "Operation", "Undo", "append_operation"]

T = TypeVar("T")

#: what one transaction of a bulk load takes at most: a session's close waits for one of them
SLICE_ROWS: Final = 512
SLICE_BYTES: Final = 4 << 20
#: an append of more outputs is a bulk load, and one of several outputs and more bytes
_BULK_ROWS: Final = 32
_BULK_BYTES: Final = 1 << 20
#: what a row takes beside its content, roughly
_ROW_BYTES: Final = 1024


class Undo:
    """Rows of an append that was refused half way, or that a crash ended. They were never acknowledged, so
    that no scan is told of their deletion."""

    def __init__(self, ids: list[OutputId]) -> None:
        self._ids = ids
        self._rows = SLICE_ROWS // 2

    def shrink(self) -> bool:
        """There was no room for so many at a time; False if there is none for one."""
        self._rows //= 2
        return self._rows > 0

    def apply(self, view: WriteView) -> int:
        """Delete some; how many."""
        part = self._ids[-max(1, self._rows) :]
        view.take_back(part)
        if len(part) == len(self._ids):
            note_pending(view, self._ids[0], ())
        return len(part)

    def advance(self, rows: int) -> bool:
        """So many are gone; whether that is all."""
        del self._ids[-rows:]
        return not self._ids


class Slices(Protocol):
    """An operation of several transactions. Called on the writer thread."""

    def advance(self, result: Any) -> bool:
        """A slice is committed, with this result; whether it was the last one."""

    def result(self) -> Any:
        """Of all slices."""

    def undo(self) -> Undo | None:
        """What takes back the slices that were committed; None where none was."""


@dataclass(slots=True, eq=False)
class Operation(Generic[T]):
    """Something to do in a write transaction.

    Attributes:
        apply: runs on the writer thread, possibly more than once (after an abort); the last result
            counts. It must leave nothing behind but what it does through the view.
        size: bytes it writes, roughly.
        rows: log rows it writes.
        frees: it makes room, so it may use the reserve that appends may not.
        idle: run it between transactions, without one.
        bulk: it takes turns with operations that are not, a transaction each.
        slices: ``apply`` does the next slice of these.
        decided: gets the result of every transaction, after it, and None for an error, before the future.
    """

    apply: Callable[[WriteView], T]
    size: int = 0
    rows: int = 0
    frees: bool = False
    idle: bool = False
    bulk: bool = False
    slices: Slices | None = None
    decided: Callable[[T | None], None] | None = None
    future: Future[T] = field(default_factory=new_future)

    def fail(self, error: BaseException | None) -> None:
        """Nothing of it was kept, or nothing more."""
        if not self.future.done():
            call_listener(self.decided, None)
            with contextlib.suppress(InvalidStateError):  # cancelled at this moment
                self.future.set_exception(error)


def append_operation(
    outputs: Sequence[CheckedOutput],
    written_us: int,
    create: Sequence[NamespaceRecord],
    decided: Callable[[list[OutputId] | None], None] | None = None,
) -> Operation[list[OutputId]]:
    """The operation that logs outputs: one transaction, or slices where they are many."""
    rows = len(outputs)
    size = sum(len(output.content) for output in outputs) + rows * _ROW_BYTES
    bulk = rows > _BULK_ROWS or (rows > 1 and size > _BULK_BYTES)
    if rows > SLICE_ROWS or (rows > 1 and size > SLICE_BYTES):
        slices = _AppendSlices(outputs, written_us, create)
        return Operation(slices.apply, SLICE_BYTES, SLICE_ROWS, bulk=True, slices=slices, decided=decided)
    return Operation(
        lambda view: view.append(outputs, written_us, create), size, rows, bulk=bulk, decided=decided
    )


class _AppendSlices:
    """Many outputs, as many a transaction as it may take; one in any case. The transactions but the last note
    what has been written, so that an open can take back what a crash left half done."""

    def __init__(
        self, outputs: Sequence[CheckedOutput], written_us: int, create: Sequence[NamespaceRecord]
    ) -> None:
        self._outputs = outputs
        self._written_us = written_us
        self._create = create
        self._ids = AppendedIds()
        #: new ones among them
        self._written: list[OutputId] = []

    def apply(self, view: WriteView) -> AppendedIds:
        first = len(self._ids)
        if not first:  # all of them before the first slice: what is refused is refused whole
            view.require_namespaces(self._outputs, self._create)
        last, size = first, 0
        while last < len(self._outputs) and last - first < SLICE_ROWS:
            size += len(self._outputs[last].content) + _ROW_BYTES
            if size > SLICE_BYTES and last > first:
                break
            last += 1
        own = self._written[0] if self._written else 0
        ids = view.append(self._outputs[first:last], self._written_us, self._create, own)
        written = self._written + _new(ids)
        if last < len(self._outputs):
            if written:
                note_pending(view, written[0], ranges_of(written))
        elif self._written:
            note_pending(view, written[0], ())
        return ids

    def advance(self, result: Any) -> bool:
        self._ids.repeated += [len(self._ids) + place for place in result.repeated]
        self._ids += result
        self._written += _new(result)
        return len(self._ids) == len(self._outputs)

    def result(self) -> AppendedIds:
        return self._ids

    def undo(self) -> Undo | None:
        return Undo(self._written) if self._written else None


def _new(ids: AppendedIds) -> list[OutputId]:
    repeated = set(ids.repeated)
    return [each for place, each in enumerate(ids) if place not in repeated]


def ranges_of(ids: Sequence[OutputId]) -> list[Range]:
    """Ascending ids as ranges."""
    ranges: list[Range] = []
    for each in ids:
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1] = ranges[-1][0], each
        else:
            ranges.append((each, each))
    return ranges
