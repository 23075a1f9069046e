"""Edits of a namespace's manifest, as pure functions of its old state. Both stores apply the results.

A manifest is a list of segments whose ranges of the log never overlap:

    log      1  2  3  4  5  6  7  8  9 10 11 12 13        (LSNs of one namespace; not contiguous in general)
    manifest [   a   ]     [    b    ]  [ c ]             5 and 13: the hot index
    after replacing b and c
             [   a   ]     [       d        ]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from suffixsvc.errors import InvalidInputError, ManifestError
from suffixsvc.types import OutputId, SegmentRecord

__all__ = ["Addition", "Manifest", "Replacement", "add", "find_covering", "replace", "require_named"]

#: ordered by range
Manifest = tuple[SegmentRecord, ...]
#: (first, last, limit) -> ids of the namespace's log rows in first..last, at most ``limit``
RowsIn = Callable[[OutputId, OutputId, int | None], list[OutputId]]

_REMEDY = "Nothing was changed; existing files remain valid."


@dataclass(frozen=True, slots=True)
class Addition:
    """The result of adding a segment.

    Attributes:
        deleted: outputs (id -> tokens) deleted while it was built, which need tombstones.
    """

    manifest: Manifest
    record: SegmentRecord
    deleted: dict[OutputId, int]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The result of replacing segments by one.

    Attributes:
        obsolete: ids whose tombstones are to be removed.
    """

    manifest: Manifest
    removed: Manifest
    record: SegmentRecord
    obsolete: list[OutputId]


def find_covering(manifest: Manifest, output_id: OutputId) -> SegmentRecord | None:
    """Return the segment whose range contains an id, or None."""
    at = bisect_right(manifest, output_id, key=lambda record: record.first_lsn)
    return manifest[at - 1] if at and manifest[at - 1].covers(output_id) else None


def require_named(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Return the segments with these names; ManifestError if one is missing."""
    found = tuple(record for record in manifest if record.name in names)
    if len(found) != len(set(names)):
        missing = sorted(set(names) - {record.name for record in found})
        raise ManifestError("segments must be in the manifest", got=", ".join(missing)[:200], remedy=_REMEDY)
    return found


def add(
    manifest: Manifest, name: str, file_bytes: int, outputs: Mapping[OutputId, int], rows_in: RowsIn
) -> Addition:
    """Add a segment of ``outputs`` (id -> tokens), see ``Store.add_segment``.

    Raises:
        InvalidInputError: ``outputs`` is empty.
        ManifestError: the range overlaps another segment, or the log has further outputs in it.
    """
    if not outputs:
        raise InvalidInputError("outputs of a segment must not be empty", got=0)
    first, last = min(outputs), max(outputs)
    record = SegmentRecord(name, first, last, len(outputs), sum(outputs.values()), file_bytes)
    for other in manifest:
        if other.name == name or (first <= other.last_lsn and other.first_lsn <= last):
            raise ManifestError(
                f"segment {name} overlaps another",
                expected=f"a range apart from {other.first_lsn} .. {other.last_lsn} of {other.name}",
                got=f"{first} .. {last}",
                remedy=_REMEDY,
            )
    present = set(rows_in(first, last, None))
    unsealed = sorted(present - outputs.keys())
    if unsealed:
        raise ManifestError(
            f"segment {name} lacks outputs of its range",
            expected=f"{len(present)} outputs in {first} .. {last}",
            got=f"output {unsealed[0]} is not in it",
            remedy=_REMEDY,
        )
    deleted = {output_id: tokens for output_id, tokens in sorted(outputs.items()) if output_id not in present}
    return Addition(tuple(sorted((*manifest, record), key=lambda r: r.first_lsn)), record, deleted)


def replace(
    manifest: Manifest,
    names: Sequence[str],
    name: str,
    file_bytes: int,
    left_out: Collection[OutputId],
    tombstones: Mapping[OutputId, int],
    rows_in: RowsIn,
) -> Replacement:
    """Replace segments by one, see ``Store.replace_segments``.

    Args:
        tombstones: those of ``left_out``, id -> tokens; may hold others.

    Raises:
        InvalidInputError: ``names`` is empty.
        ManifestError: a segment is missing, they are not adjacent, or ``name`` is taken.
    """
    if not names:
        raise InvalidInputError("names of segments to replace must not be empty", got=0)
    removed = require_named(manifest, names)
    first, last = removed[0].first_lsn, removed[-1].last_lsn
    for left, right in pairwise(removed):
        if manifest.index(right) != manifest.index(left) + 1 or rows_in(
            left.last_lsn + 1, right.first_lsn - 1, 1
        ):
            raise ManifestError(
                "segments to be replaced must be adjacent",
                expected=f"nothing between {left.name} and {right.name}",
                got="an output or a segment",
                remedy=_REMEDY,
            )
    rest = tuple(record for record in manifest if record not in removed)
    if any(record.name == name for record in rest):
        raise ManifestError(f"segment {name} is already in the manifest", remedy=_REMEDY)
    obsolete = [
        output_id
        for output_id in sorted(set(left_out))
        if output_id in tombstones and find_covering(removed, output_id)
    ]
    record = SegmentRecord(
        name,
        first,
        last,
        sum(r.outputs for r in removed) - len(obsolete),
        sum(r.tokens for r in removed) - sum(tombstones[i] for i in obsolete),
        file_bytes,
    )
    return Replacement(tuple(sorted((*rest, record), key=lambda r: r.first_lsn)), removed, record, obsolete)
