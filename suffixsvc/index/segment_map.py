"""Map of a namespace's outputs to their location: a sealed segment, the hot index, or still to be loaded.

    LSN      1 ........ 40   41 .. 60   61 ....... 90   91 ..
             [ segment a ]   absent     [ segment b ]   hot
                             (being read back from the log)

A range of LSNs has one location at a time and changes it atomically, under the owner's lock. The store sends
every deletion to :meth:`SegmentMap.forget` on its own thread, in the order of its commits. So a deletion that
committed before a row was read, or before a manifest row was written, is recorded here before the reader of
the row, or the writer of the manifest row, proceeds (a reader waits for ``Store.barrier``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from suffixsvc.core.segments import Segment
from suffixsvc.types import OutputId, SegmentRecord, StoredOutput


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment in use, and the counts of its outputs that are not deleted."""

    record: SegmentRecord
    segment: Segment
    outputs: int
    tokens: int


class SegmentMap:
    """Locations of one namespace's outputs.

    Thread-safe: :meth:`begin`, :meth:`end`, :meth:`complete`, :meth:`is_absent`, :meth:`hot_ranges`. The
    owner's lock is held around every other call.

    Args:
        lock: the owner's lock, which is reentrant.

    Attributes:
        sealed: the segments in use, ordered by range.
        absent: range whose load was begun and not completed; an output of it that is neither sealed nor
            loaded is in no index.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self.sealed: list[Sealed] = []
        self.absent: tuple[OutputId, OutputId] | None = None
        self._loaded: set[OutputId] = set()
        #: outputs deleted since the current move began; None outside a move
        self._deleted: set[OutputId] | None = None

    @property
    def deleted(self) -> Collection[OutputId]:
        """Outputs deleted since :meth:`begin`."""
        return self._deleted or ()

    def begin(self) -> None:
        """Begin a move: outputs are about to be read for a new segment. One at a time."""
        with self._lock:
            self._deleted = set()

    def end(self) -> None:
        """End a move, whether it completed or not. Idempotent."""
        with self._lock:
            self._deleted = None

    def forget(self, deleted: Sequence[StoredOutput]) -> list[StoredOutput]:
        """Remove outputs from the segments that hold them; returns those that are hot."""
        hot = []
        by_segment: dict[int, list[StoredOutput]] = {}
        for stored in deleted:
            at = self._segment_of(stored.output_id)
            if at is not None:
                by_segment.setdefault(at, []).append(stored)
            elif not self.is_absent(stored.output_id):
                hot.append(stored)
            if self._deleted is not None:
                self._deleted.add(stored.output_id)
        for at, outputs in by_segment.items():
            here = self.sealed[at]
            here.segment.forget(stored.output_id for stored in outputs)
            tokens = sum(len(stored.output.token_ids) for stored in outputs)
            self.sealed[at] = replace(here, outputs=here.outputs - len(outputs), tokens=here.tokens - tokens)
        return hot

    def _segment_of(self, output_id: OutputId) -> int | None:
        return next((i for i, s in enumerate(self.sealed) if s.record.covers(output_id)), None)

    def is_absent(self, output_id: OutputId) -> bool:
        """Whether an output, if the log has it, is still to be loaded."""
        with self._lock:
            if self.absent is None or not self.absent[0] <= output_id <= self.absent[1]:
                return False
            return output_id not in self._loaded and self._segment_of(output_id) is None

    def attach(self, new: Sealed) -> None:
        """Add a segment whose outputs have no other location."""
        self.sealed = sorted([*self.sealed, new], key=lambda sealed: sealed.record.first_lsn)

    def replace(self, record: SegmentRecord, segment: Segment, names: Collection[str]) -> None:
        """Replace segments by one that holds their remaining outputs."""
        old = [sealed for sealed in self.sealed if sealed.record.name in names]
        self.detach(names)
        outputs, tokens = sum(sealed.outputs for sealed in old), sum(sealed.tokens for sealed in old)
        self.attach(Sealed(record, segment, outputs, tokens))

    def detach(self, names: Collection[str]) -> None:
        """Remove segments."""
        self.sealed = [sealed for sealed in self.sealed if sealed.record.name not in names]

    def expect(self, first: OutputId, last: OutputId) -> None:
        """Begin to load a range; a range that was begun before continues with its absent outputs."""
        if self.absent != (first, last):
            self.absent = first, last
            self._loaded = set()

    def complete(self) -> None:
        """End a load: every output of the range that is not deleted is loaded or attached, and the deletion
        listener has received every earlier deletion."""
        with self._lock:
            self.absent = None
            self._loaded = set()

    def load(self, output_id: OutputId) -> bool:
        """Mark an output of the expected range as hot; False if it was deleted since it was read."""
        if output_id in self.deleted:
            return False
        self._loaded.add(output_id)
        return True

    def hot_ranges(self, last: OutputId) -> Iterator[tuple[OutputId, OutputId]]:
        """Ranges of ids up to ``last`` that no segment covers, ascending, as of the first one."""
        at = 1
        for sealed in self.sealed:  # replaced by every change of a range, never extended
            if at < sealed.record.first_lsn:
                yield at, min(sealed.record.first_lsn - 1, last)
            at = sealed.record.last_lsn + 1
        if at <= last:
            yield at, last
