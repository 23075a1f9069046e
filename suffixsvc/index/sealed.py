"""Which of a namespace's outputs are where: in sealed segments, in the hot index, or on their way.

    LSN      1 ........ 40   41 .. 60   61 ....... 90   91 ..
             [ segment a ]   absent     [ segment b ]   hot
                             (being read back from the log)

A range belongs to one place at a time, and changes it in one instant, under the owner's lock. The store
hands every deletion to :meth:`Places.forget` on its own thread, in the order of its commits: so a deletion
that committed before a row was read, or before an entry in the manifest, is known here before the reader of
the row, or the caller of the entry, goes on (a reader waits for ``Store.barrier``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from suffixsvc.core.segments import Segment
from suffixsvc.types import OutputId, SegmentRecord, StoredOutput

__all__ = ["Places", "Sealed"]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment in use, and what of it is not forgotten."""

    record: SegmentRecord
    segment: Segment
    outputs: int
    tokens: int


class Places:
    """Not thread-safe: its owner's lock is held around every call."""

    def __init__(self) -> None:
        self.sealed: list[Sealed] = []
        #: still to be loaded: what of it is neither sealed nor in `_loaded` is in no index
        self._absent: tuple[OutputId, OutputId] | None = None
        self._loaded: set[OutputId] = set()
        #: forgotten since the work under way began; None: none is
        self._gone: set[OutputId] | None = None

    @property
    def gone(self) -> Collection[OutputId]:
        """Outputs forgotten since :meth:`begin`."""
        return self._gone or ()

    def begin(self) -> None:
        """Note what is forgotten from now on: somebody reads outputs to put them elsewhere."""
        self._gone = set()

    def end(self) -> None:
        self._gone = None

    def forget(self, gone: Sequence[StoredOutput]) -> list[StoredOutput]:
        """Take outputs out of the segments they are in; returns those that are hot."""
        hot = []
        doomed: dict[int, list[StoredOutput]] = {}
        for stored in gone:
            at = self._segment_of(stored.output_id)
            if at is not None:
                doomed.setdefault(at, []).append(stored)
            elif not self.is_absent(stored.output_id):
                hot.append(stored)
            if self._gone is not None:
                self._gone.add(stored.output_id)
        for at, outputs in doomed.items():
            here = self.sealed[at]
            here.segment.forget(stored.output_id for stored in outputs)
            tokens = sum(len(stored.output.token_ids) for stored in outputs)
            self.sealed[at] = replace(here, outputs=here.outputs - len(outputs), tokens=here.tokens - tokens)
        return hot

    def _segment_of(self, output_id: OutputId) -> int | None:
        return next((i for i, s in enumerate(self.sealed) if s.record.covers(output_id)), None)

    @property
    def absent(self) -> tuple[OutputId, OutputId] | None:
        """The range that is still to be loaded."""
        return self._absent

    def is_absent(self, output_id: OutputId) -> bool:
        """Whether an output, if the log has it, is still to be loaded."""
        if self._absent is None or not self._absent[0] <= output_id <= self._absent[1]:
            return False
        return output_id not in self._loaded and self._segment_of(output_id) is None

    def attach(self, new: Sealed) -> None:
        """A segment whose outputs are nowhere else."""
        self.sealed = sorted([*self.sealed, new], key=lambda sealed: sealed.record.first_lsn)

    def exchange(self, new: Sealed, names: Collection[str]) -> None:
        """A segment in the place of others; what is left of them is left of it."""
        old = [sealed for sealed in self.sealed if sealed.record.name in names]
        self.sealed = [sealed for sealed in self.sealed if sealed.record.name not in names]
        left = sum(sealed.outputs for sealed in old), sum(sealed.tokens for sealed in old)
        self.attach(replace(new, outputs=left[0], tokens=left[1]))

    def detach(self, names: Collection[str]) -> None:
        self.sealed = [sealed for sealed in self.sealed if sealed.record.name not in names]

    def expect(self, first: OutputId, last: OutputId) -> None:
        """The outputs of this range will be loaded, or attached; of a range that was expected before, those
        that are absent yet."""
        if self._absent != (first, last):
            self._absent = first, last
            self._loaded = set()

    def complete(self) -> None:
        """All of the expected range is loaded or attached, but what was forgotten."""
        self._absent = None
        self._loaded = set()

    def load(self, output_id: OutputId) -> bool:
        """Whether an output of the expected range, read from the log, is to be made hot now."""
        if output_id in self.gone:
            return False
        self._loaded.add(output_id)
        return True

    def hot_ranges(self, last: OutputId) -> Iterable[tuple[OutputId, OutputId]]:
        """Ranges up to ``last`` that no segment stands for, ascending."""
        at = 1
        for sealed in self.sealed:
            if at < sealed.record.first_lsn:
                yield at, min(sealed.record.first_lsn - 1, last)
            at = sealed.record.last_lsn + 1
        if at <= last:
            yield at, last
