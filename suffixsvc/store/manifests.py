"""Methods of a store for the manifests: the ranges of the log in sealed segments.

A deletion in such a range leaves a tombstone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from suffixsvc.store.transactions import manifest
from suffixsvc.store.transactions.scans import Log
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, SegmentRecord

T = TypeVar("T")

#: approximate bytes of an edit of a manifest
_EDIT_BYTES: Final = 1024


class Manifests(ABC):
    """Segments and tombstones of namespaces; a base of the store."""

    _log: Log

    @abstractmethod
    def _call(self, apply: Callable[[WriteView], T], size: int = 0, *, frees: bool = False) -> T:
        """Run ``apply`` in a write transaction and wait."""

    @property
    @abstractmethod
    def segment_folder(self) -> Path | None:
        """The folder of segment files, which need not exist. None: a store in memory, without segments."""

    def segments(self, namespace: str) -> list[SegmentRecord]:
        """The namespace's manifest, ordered by range."""
        self._log.require_usable()
        snapshot = self._log.snapshot
        return list(snapshot.manifests.get(snapshot.names.require(namespace), ()))

    def segment_names(self) -> set[str]:
        """The names of all segment files in manifests."""
        self._log.require_usable()
        return {r.name for manifest in self._log.snapshot.manifests.values() for r in manifest}

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        """Deleted outputs that a segment still holds, and their tokens, ordered by id."""
        with self._log.read() as view:
            return view.tombstones(view.names.require(namespace))

    def sealed(self, namespace: str) -> tuple[list[SegmentRecord], dict[OutputId, int]]:
        """:meth:`segments` and :meth:`tombstones`, of one moment: a merge removes tombstones."""
        with self._log.read() as view:
            number = view.names.require(namespace)
            return list(view.manifest(number)), view.tombstones(number)

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        """Add a segment of these outputs (id -> tokens) to the manifest, durably.

        Its range is from the lowest to the highest of them. Outputs deleted since they were read get their
        tombstone in the same transaction.

        Raises:
            ManifestError: the log has further outputs in that range, or another segment overlaps it; nothing
                was changed.
        """
        return self._call(
            lambda view: manifest.add_segment(view, namespace, name, file_bytes, outputs), _EDIT_BYTES
        )

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        """Replace adjacent segments by one, durably; the tombstones of ``left_out`` are removed.

        Raises:
            ManifestError: the segments are not adjacent, or one is not in the manifest; nothing was changed.
        """
        return self._call(
            lambda view: manifest.replace_segments(view, namespace, names, name, file_bytes, left_out),
            _EDIT_BYTES,
            frees=True,
        )

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        """Remove segments and the tombstones of their ranges from the manifest, durably."""
        self._call(lambda view: manifest.drop_segments(view, namespace, names), frees=True)
