"""Edits of a namespace's manifest: which ranges of the log are in sealed segments.

Ranges of a namespace never overlap:

    log      1  2  3  4  5  6  7  8  9 10 11 12 13        (LSNs of one namespace; not contiguous in general)
    manifest [   a   ]     [    b    ]  [ c ]             5 and 13: the hot index
    after replacing b and c
             [   a   ]     [       d        ]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from suffixsvc.errors import InvalidInputError, ManifestError
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.transactions.snapshot import Manifest
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, SegmentRecord


def add_segment(
    view: WriteView, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
) -> SegmentRecord:
    """Add a segment of ``outputs`` (id -> tokens), with tombstones of those deleted since they were read.

    Raises:
        InvalidInputError: ``outputs`` is empty.
        ManifestError: the range overlaps another segment, or the log has further outputs in it.
    """
    number = view.names.require(namespace)
    if not outputs:
        raise InvalidInputError("outputs of a segment must not be empty", got=0)
    first, last = min(outputs), max(outputs)
    for other in view.manifest(number):
        if other.name == name or (first <= other.last_lsn and other.first_lsn <= last):
            raise _refused(
                f"segment {name} overlaps another",
                f"a range apart from {other.first_lsn} .. {other.last_lsn} of {other.name}",
                f"{first} .. {last}",
            )
    present = set(view.lsns(number, first, last))
    unsealed = sorted(present - outputs.keys())
    if unsealed:
        raise _refused(
            f"segment {name} lacks outputs of its range",
            f"{len(present)} outputs in {first} .. {last}",
            f"output {unsealed[0]} is not in it",
        )
    record = SegmentRecord(name, first, last, len(outputs), sum(outputs.values()), file_bytes)
    _put(view, number, record, view.manifest(number))
    for output_id in sorted(outputs.keys() - present):
        view.put_tombstone(number, output_id, outputs[output_id])
    return record


def replace_segments(
    view: WriteView,
    namespace: str,
    names: Sequence[str],
    name: str,
    file_bytes: int,
    left_out: Collection[OutputId],
) -> SegmentRecord:
    """Replace adjacent segments by one and remove the tombstones of ``left_out``.

    Raises:
        InvalidInputError: ``names`` is empty.
        ManifestError: a segment is missing, they are not adjacent, or ``name`` is taken.
    """
    number = view.names.require(namespace)
    if not names:
        raise InvalidInputError("names of segments to replace must not be empty", got=0)
    removed, rest = _split(view.manifest(number), names)
    for left, right in pairwise(removed):
        between = [record for record in rest if left.first_lsn < record.first_lsn < right.first_lsn]
        if between or view.lsns(number, left.last_lsn + 1, right.first_lsn - 1, 1):
            raise _refused(
                "segments to be replaced must be adjacent",
                f"nothing between {left.name} and {right.name}",
                "an output or a segment",
            )
    if any(record.name == name for record in rest):
        raise _refused(f"segment {name} is already in the manifest")
    omitted = set(left_out)
    obsolete = {
        output_id: tokens
        for record in removed
        for output_id, tokens in view.tombstones(number, record.first_lsn, record.last_lsn).items()
        if output_id in omitted
    }
    merged = SegmentRecord(
        name,
        removed[0].first_lsn,
        removed[-1].last_lsn,
        sum(record.outputs for record in removed) - len(obsolete),
        sum(record.tokens for record in removed) - sum(obsolete.values()),
        file_bytes,
    )
    _drop(view, number, removed, obsolete)
    _put(view, number, merged, rest)
    return merged


def drop_segments(view: WriteView, namespace: str, names: Sequence[str]) -> None:
    """Remove segments and the tombstones of their ranges; ManifestError if one is missing."""
    number = view.names.require(namespace)
    removed, rest = _split(view.manifest(number), names)
    for record in removed:
        _drop(view, number, (record,), view.tombstones(number, record.first_lsn, record.last_lsn))
    view.set_manifest(number, rest)


def _split(manifest: Manifest, names: Collection[str]) -> tuple[Manifest, Manifest]:
    """Return the segments with these names, and the others."""
    missing = sorted(set(names) - {record.name for record in manifest})
    if missing:
        raise _refused("segments must be in the manifest", got=", ".join(missing)[:200])
    chosen = tuple(record for record in manifest if record.name in names)
    return chosen, tuple(record for record in manifest if record.name not in names)


def _put(view: WriteView, number: int, record: SegmentRecord, others: Manifest) -> None:
    view.put(
        "segments",
        keys.namespace_row_key(number, record.first_lsn),
        table_records.encode_segment(number, record),
    )
    view.set_manifest(number, (*others, record))


def _drop(view: WriteView, number: int, records: Manifest, tombstones: Collection[OutputId]) -> None:
    for record in records:
        view.drop("segments", keys.namespace_row_key(number, record.first_lsn))
    for output_id in tombstones:
        view.drop("tombstones", keys.namespace_row_key(number, output_id))


def _refused(what: str, expected: object = None, got: object = None) -> ManifestError:
    remedy = "Nothing was changed; existing files remain valid."
    return ManifestError(what, expected=expected, got=got, remedy=remedy)
