"""Index of a namespace whose segments are those of a manifest, without the outputs that were deleted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from suffixsvc.core import WriteSignal
from suffixsvc.index import NamespaceIndex, Sealed
from suffixsvc.log_types import SealedContents
from suffixsvc.types import OutputId, SegmentRecord

#: forgotten texts that are subtracted from the counts of a segment in one call
_CORRECTED_TEXTS: Final = 64


class ManifestIndex(NamespaceIndex):
    """The segments of a :class:`~suffixsvc_follower.contents.namespace_copy.NamespaceCopy`.

    Args:
        path: of the namespace.
        written: is told when local sessions have written tokens.
    """

    def __init__(self, path: str, written: WriteSignal | None) -> None:
        super().__init__(path, written=written)
        #: the manifest, and the deleted outputs in its segments
        self._records: dict[str, SegmentRecord] = {}
        self._tombstones: set[OutputId] = set()

    def manifest(self) -> list[SegmentRecord]:
        """The segments that the copy is to hold, attached or not."""
        with self._lock:
            return list(self._records.values())

    def missing_segments(self) -> list[SegmentRecord]:
        """Segments of the manifest that are not attached, or turned out to be damaged."""
        with self._lock:
            sound = {each.record.name for each in self.segments.sealed if not each.segment.corrupt}
            return [record for name, record in self._records.items() if name not in sound]

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the segment files that are mapped."""
        with self._lock:
            return sum(each.record.file_bytes for each in self.segments.sealed)

    def maintain(self) -> None:
        """Make the counts of segments exact again after deletions, and unmap segments that were detached."""
        for each in self.sealed():
            while each.segment.correct_hubs(_CORRECTED_TEXTS):
                pass
        self.index.release_segments()

    def _set_manifest(self, sealed: SealedContents) -> None:
        self._records = {record.name: record for record in sealed.segments}
        self._tombstones = set(sealed.deleted)

    def _use(self, segments: Sequence[Sealed]) -> None:
        """Draft from these segments, without the deleted outputs."""
        deleted = sorted(self._tombstones)
        counted = []
        for each in segments:
            record = each.record
            gone = deleted[bisect_left(deleted, record.first_lsn) : bisect_right(deleted, record.last_lsn)]
            each.segment.forget(gone)
            outputs = record.outputs - len(gone)
            counted.append(Sealed(record, each.segment, outputs, _share(record, outputs)))
        self.segments.sealed = sorted(counted, key=lambda each: each.record.first_lsn)
        self._set_segments()

    def _attached_records(self) -> list[SegmentRecord]:
        """The segments of the manifest that are attached; while contents are loaded, others are, too."""
        return [each.record for each in self.segments.sealed if each.record.name in self._records]

    def _is_sealed(self, output_id: OutputId) -> bool:
        """Whether an attached segment of the manifest covers an id."""
        return any(record.covers(output_id) for record in self._attached_records())

    def _forget_sealed(self, output_id: OutputId) -> None:
        if any(record.covers(output_id) for record in self._records.values()):
            self._tombstones.add(output_id)  # also of segments that are not attached yet
        for at, each in enumerate(self.segments.sealed):
            if each.record.covers(output_id) and each.segment.forget([output_id]):
                outputs = each.outputs - 1
                self.segments.sealed[at] = replace(each, outputs=outputs, tokens=_share(each.record, outputs))


def _share(record: SegmentRecord, outputs: int) -> int:
    """Estimated tokens of so many outputs of a segment: the manifest has the sum of all only."""
    return record.tokens * outputs // record.outputs if record.outputs else 0
