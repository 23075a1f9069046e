"""What a manifest may become. Pure: both stores ask here, then write what they are told.

A namespace's manifest is a list of segments with ranges of the log that never overlap:

    log      1  2  3  4  5  6  7  8  9 10 11 12 13        (LSNs of one namespace; others lie in between)
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

__all__ = ["Addition", "Manifest", "Replacement", "add", "covering", "named", "replace"]

#: ordered by range
Manifest = tuple[SegmentRecord, ...]
#: ids of the namespace's log rows in first..last, at most so many
RowsIn = Callable[[OutputId, OutputId, int | None], list[OutputId]]

_REMEDY = "Nothing was changed; the files that are there stay valid."


@dataclass(frozen=True, slots=True)
class Addition:
    """A new segment, and the outputs that were deleted while it was built."""

    manifest: Manifest
    record: SegmentRecord
    deleted: dict[OutputId, int]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A segment in the place of others, and the tombstones that are not needed any more."""

    manifest: Manifest
    removed: Manifest
    record: SegmentRecord
    needless: list[OutputId]


def covering(manifest: Manifest, output_id: OutputId) -> SegmentRecord | None:
    """The segment whose range an id is in."""
    at = bisect_right(manifest, output_id, key=lambda record: record.first_lsn)
    return manifest[at - 1] if at and manifest[at - 1].covers(output_id) else None


def named(manifest: Manifest, names: Collection[str]) -> Manifest:
    """The segments of these names; ManifestError if one is not there."""
    found = tuple(record for record in manifest if record.name in names)
    if len(found) != len(set(names)):
        missing = sorted(set(names) - {record.name for record in found})
        raise ManifestError("a segment is not in the manifest", got=", ".join(missing)[:200], remedy=_REMEDY)
    return found


def add(
    manifest: Manifest, name: str, file_bytes: int, outputs: Mapping[OutputId, int], rows_in: RowsIn
) -> Addition:
    """See ``Store.add_segment``."""
    if not outputs:
        raise InvalidInputError("a segment holds no output", expected="at least one", got=0)
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
    kept = set(rows_in(first, last, None))
    unsealed = sorted(kept - outputs.keys())
    if unsealed:
        raise ManifestError(
            f"segment {name} lacks outputs of its range",
            expected=f"{len(kept)} outputs in {first} .. {last}",
            got=f"output {unsealed[0]} is not in it",
            remedy=_REMEDY,
        )
    deleted = {output_id: tokens for output_id, tokens in sorted(outputs.items()) if output_id not in kept}
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
    """See ``Store.replace_segments``. ``tombstones``: those of ``left_out`` that there are."""
    if not names:
        raise InvalidInputError("no segments to replace", expected="at least one name", got=0)
    removed = named(manifest, names)
    first, last = removed[0].first_lsn, removed[-1].last_lsn
    for left, right in pairwise(removed):
        if manifest.index(right) != manifest.index(left) + 1 or rows_in(
            left.last_lsn + 1, right.first_lsn - 1, 1
        ):
            raise ManifestError(
                "segments to be merged are not neighbours",
                expected=f"nothing between {left.name} and {right.name}",
                got="an output or a segment",
                remedy=_REMEDY,
            )
    rest = tuple(record for record in manifest if record not in removed)
    if any(record.name == name for record in rest):
        raise ManifestError(f"segment {name} is in the manifest already", remedy=_REMEDY)
    needless = [
        output_id
        for output_id in sorted(set(left_out))
        if output_id in tombstones and covering(removed, output_id)
    ]
    record = SegmentRecord(
        name,
        first,
        last,
        sum(r.outputs for r in removed) - len(needless),
        sum(r.tokens for r in removed) - sum(tombstones[i] for i in needless),
        file_bytes,
    )
    return Replacement(tuple(sorted((*rest, record), key=lambda r: r.first_lsn)), removed, record, needless)
