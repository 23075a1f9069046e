"""Operations of the store's thread: work in one transaction, or in slices of a transaction each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog

from suffixsvc.runtime.signal_guard import new_future
from suffixsvc.store.records.table_records import Range
from suffixsvc.store.records.validation import CheckedOutput
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import AppendedIds, NamespaceRecord, OutputId

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: limits of one transaction of a bulk load; the close of a session waits for at most one of them
SLICE_ROWS: Final = 512
SLICE_BYTES: Final = 4 << 20
#: an append of more outputs is a bulk load, as is one of several outputs with more bytes
_BULK_ROWS: Final = 32
_BULK_BYTES: Final = 1 << 20
#: approximate bytes of a row in addition to its content
_ROW_BYTES: Final = 1024


def call_listener(listener: Callable[[T], object] | None, value: T) -> None:
    """Call the listener unless it is None; log an exception that it raises."""
    if listener is None:
        return
    try:
        listener(value)
    except Exception:
        log.exception("a listener of the store failed")


class Undo:
    """Deletion of the rows of an append that failed or crashed between two slices.

    The rows were never acknowledged, so scans do not receive them as deleted.
    """

    def __init__(self, ids: list[OutputId]) -> None:
        self._ids = ids
        self._rows = SLICE_ROWS // 2

    def shrink(self) -> bool:
        """Halve the rows per transaction after a lack of room; False if one row did not fit."""
        self._rows //= 2
        return self._rows > 0

    def apply(self, view: WriteView) -> int:
        """Delete the last rows that are left; return their number."""
        part = self._ids[-max(1, self._rows) :]
        view.undo_append(part)
        if len(part) == len(self._ids):
            view.put_pending(self._ids[0], ())
        return len(part)

    def advance(self, rows: int) -> bool:
        """Record that ``rows`` were deleted; whether none is left."""
        del self._ids[-rows:]
        return not self._ids


@dataclass(slots=True, eq=False)
class Operation(Generic[T]):
    """Work for a write transaction, and the future of its result.

    Attributes:
        apply: runs on the store's thread, possibly more than once (after an abort); the last result counts.
            It must have no effects other than through the view.
        size: approximate bytes that it writes.
        rows: log rows that it writes.
        frees: it frees space, so it may use the reserve that appends may not.
        between_transactions: run it between write transactions, without one.
        bulk: queue it with the bulk loads.
        slices: ``apply`` performs the next slice of these.
        on_committed: called before the future is resolved: with the result of every transaction after its
            commit, and with None for an error.
    """

    apply: Callable[[WriteView], T]
    size: int = 0
    rows: int = 0
    frees: bool = False
    between_transactions: bool = False
    bulk: bool = False
    slices: AppendSlices | None = None
    on_committed: Callable[[T | None], None] | None = None
    future: Future[T] = field(default_factory=new_future)

    def start(self) -> bool:
        """Whether the operation is to be run; afterwards it cannot be cancelled.

        False if it was cancelled while queued. An operation with committed slices is running already, or was
        failed after the last one.
        """
        if self.future.running():
            return True
        if self.future.done() and not self.future.cancelled():
            return False
        if self.future.set_running_or_notify_cancel():
            return True
        call_listener(self.on_committed, None)
        return False

    def fail(self, error: BaseException | None) -> None:
        """Resolve the future with an error; no further part of the operation is stored."""
        if not self.future.done():
            call_listener(self.on_committed, None)
            with contextlib.suppress(InvalidStateError):  # cancelled concurrently
                self.future.set_exception(error)


def append_operation(
    outputs: Sequence[CheckedOutput],
    written_us: int,
    create: Sequence[NamespaceRecord],
    on_committed: Callable[[list[OutputId] | None], None] | None,
    *,
    in_slices: bool,
) -> Operation[list[OutputId]]:
    """Return the operation that logs outputs.

    Args:
        in_slices: split it into transactions of the limits above.
    """
    rows = len(outputs)
    size = sum(len(output.content) for output in outputs) + rows * _ROW_BYTES
    bulk = rows > _BULK_ROWS or (rows > 1 and size > _BULK_BYTES)
    if in_slices and (rows > SLICE_ROWS or (rows > 1 and size > SLICE_BYTES)):
        slices = AppendSlices(outputs, written_us, create)
        return Operation(
            slices.apply, SLICE_BYTES, SLICE_ROWS, bulk=True, slices=slices, on_committed=on_committed
        )
    return Operation(
        lambda view: view.append(outputs, written_us, create),
        size,
        rows,
        bulk=bulk,
        on_committed=on_committed,
    )


class AppendSlices:
    """An append of many outputs, in slices of at least one output.

    Every transaction but the last updates the ``pending`` record of the rows written so far, so that the next
    open can undo an append that a crash interrupted. Called on the store's thread.

    Attributes:
        ids: ids of the outputs in committed slices.
    """

    def __init__(
        self, outputs: Sequence[CheckedOutput], written_us: int, create: Sequence[NamespaceRecord]
    ) -> None:
        self._outputs = outputs
        self._written_us = written_us
        self._create = create
        self.ids = AppendedIds()
        #: ids of the rows written, repeated outputs excluded
        self._written: list[OutputId] = []

    def apply(self, view: WriteView) -> AppendedIds:
        """Log the next slice; return its ids."""
        first = len(self.ids)
        if not first:  # for all slices before the first: a refusal must leave nothing written
            view.require_namespaces(self._outputs, self._create)
        last, size = first, 0
        while last < len(self._outputs) and last - first < SLICE_ROWS:
            size += len(self._outputs[last].content) + _ROW_BYTES
            if size > SLICE_BYTES and last > first:
                break
            last += 1
        own = self._written[0] if self._written else 0
        ids = view.append(self._outputs[first:last], self._written_us, self._create, own)
        written = self._written + _written_ids(ids)
        if last < len(self._outputs):
            if written:
                view.put_pending(written[0], _ranges_of(written))
        elif self._written:
            view.put_pending(written[0], ())
        return ids

    def advance(self, result: AppendedIds) -> bool:
        """Record the result of a committed slice; whether it was the last one."""
        self.ids.repeated += [len(self.ids) + place for place in result.repeated]
        self.ids += result
        self._written += _written_ids(result)
        return len(self.ids) == len(self._outputs)

    def undo(self) -> Undo | None:
        """Return the undo of the committed slices, or None."""
        return Undo(self._written) if self._written else None


def _written_ids(ids: AppendedIds) -> list[OutputId]:
    repeated = set(ids.repeated)
    return [each for place, each in enumerate(ids) if place not in repeated]


def _ranges_of(ids: Sequence[OutputId]) -> list[Range]:
    """Return ascending ids as ranges."""
    ranges: list[Range] = []
    for each in ids:
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1] = ranges[-1][0], each
        else:
            ranges.append((each, each))
    return ranges
