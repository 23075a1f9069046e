"""Records of all databases but the log and its payloads. The contract is ``docs/format.md``.

Decoders check lengths before they use them, and raise a :class:`StoreCorruptError` that names the record and
the reason.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final, NamedTuple

from suffixsvc.clock import ClockReading
from suffixsvc.config import validate_principal
from suffixsvc.errors import InvalidInputError
from suffixsvc.store.records.framing import (
    Layout,
    corrupt,
    decode_text,
    encode_text,
    require_length,
    require_no_flags,
    require_same,
)
from suffixsvc.store.records.keys import log_key, namespace_row_key, principal_key, state_key
from suffixsvc.types import OutputId, SegmentRecord

#: schema of a folder: its databases and the meaning of their keys
SCHEMA_VERSION: Final = 5
#: folders of this schema and later ones are upgraded to the current schema when they are opened
OLDEST_SCHEMA: Final = 1

#: runs that a history lists
MAX_RUNS: Final = 256

#: flag of a namespace record
_DELETING: Final = 1
#: flag of the schema record
_ACCESS_CONTROLLED: Final = 1

_SCHEMA = Layout(b"SXHD", "IQ", flags=_ACCESS_CONTROLLED)
_COUNTERS = Layout(b"SXCT", "IQQQQQ")
_CLOCK = Layout(b"SXCK", "QQ")
_NODE = Layout(b"SXND", "Q")
_NAMESPACE = Layout(b"SXNS", "IHH", flags=_DELETING)
_STATE = Layout(b"SXST", "IHHQ")
_SEGMENT = Layout(b"SXSG", "IHHQQQQQ")
_TOMBSTONE = Layout(b"SXTS", "IIQ")
_PENDING = Layout(b"SXPD", "I")
_DELETION = Layout(b"SXDL", "QQII16s")
_HISTORY = Layout(b"SXHY", "QI")
_PRINCIPAL = Layout(b"SXPR", "IHH")
_ERASURE = Layout(b"SXER", "Q")
_RANGE = struct.Struct("<QQ")
_RUN = struct.Struct("<QQ")

#: first and last LSN, both included
Range = tuple[OutputId, OutputId]


class SchemaRow(NamedTuple):
    """The schema record.

    Attributes:
        version: schema of the folder.
        created_us: time of its creation, in microseconds since the epoch.
        access_controlled: a server with access control has served the log: one without is refused
            (``suffixsvc/access/served_log.py``).
    """

    version: int
    created_us: int
    access_controlled: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """A namespace and its number in keys. ``deleting``: its contents are being deleted, then its row."""

    namespace_id: int
    path: str
    tokenizer: str
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class DeletionRow:
    """A deletion in the log: of an output, or of a namespace with all its outputs (output id 0, no uuid)."""

    lsn: OutputId  #: of the deletion itself
    output_id: OutputId
    namespace_id: int
    uuid: bytes  #: of the output


@dataclass(frozen=True, slots=True)
class History:
    """What a reader's position is compared with, to see whether the log leads on from it.

    Attributes:
        floor: LSN up to which deletions are not recorded any more.
        runs: (first LSN, number) of the newest runs that assigned LSNs, ascending. A run is the time from an
            open of the log to its close; its number is random, so that a restored backup has other ones.
    """

    floor: OutputId = 0
    runs: tuple[tuple[OutputId, int], ...] = ()

    def run_of(self, lsn: OutputId) -> int:
        """Return the number of the run that assigned an LSN; 0 if it is not known any more."""
        return next((run for first, run in reversed(self.runs) if first <= lsn), 0)

    def with_run(self, first: OutputId, run: int) -> History:
        """Return the history with one more run, and the oldest one left out beyond :data:`MAX_RUNS`."""
        return replace(self, runs=(*self.runs, (first, run))[-MAX_RUNS:])


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals written with every transaction, in the order of the record. ``last_lsn`` never decreases."""

    last_namespace_id: int = 0
    last_lsn: int = 0
    outputs: int = 0
    payloads: int = 0
    tokens: int = 0  #: of all outputs
    txn: int = 0  #: number of the transaction that wrote this


def encode_schema(schema: int, created_us: int, *, access_controlled: bool = False) -> bytes:
    """Encode the schema record."""
    return _SCHEMA.encode(schema, created_us, flags=_ACCESS_CONTROLLED * access_controlled)


def decode_schema(raw: bytes) -> SchemaRow:
    """Decode the schema record; StoreCorruptError."""
    where = "schema record"
    flags, version, created_us, tail = _SCHEMA.decode(raw, where)
    require_length(where, tail, 0)
    return SchemaRow(version, created_us, bool(flags & _ACCESS_CONTROLLED))


def encode_counters(counters: Counters) -> bytes:
    """Encode the counters record."""
    return _COUNTERS.encode(*astuple(counters))


def decode_counters(raw: bytes) -> Counters:
    """Decode the counters record; StoreCorruptError."""
    return Counters(*_COUNTERS.decode_fixed(raw, "counters record"))


def encode_clock(reading: ClockReading) -> bytes:
    """Encode the clock record."""
    return _CLOCK.encode(reading.time_us, reading.wall_us)


def decode_clock(raw: bytes) -> ClockReading:
    """Decode the clock record; StoreCorruptError."""
    return ClockReading(*_CLOCK.decode_fixed(raw, "clock record"))


def encode_node(node_id: int) -> bytes:
    """Encode the node record."""
    return _NODE.encode(node_id)


def decode_node(raw: bytes) -> int:
    """Decode the node record; StoreCorruptError."""
    (node_id,) = _NODE.decode_fixed(raw, "node record")
    if not node_id:
        raise corrupt("node record: node id must not be zero")
    return int(node_id)


def encode_namespace(row: NamespaceRow) -> bytes:
    """Encode a namespace record; its key is its path."""
    path, tokenizer = encode_text(row.path), encode_text(row.tokenizer)
    return _NAMESPACE.encode(
        row.namespace_id, len(path), len(tokenizer), flags=_DELETING * row.deleting, tail=path + tokenizer
    )


def decode_namespace(raw: bytes, path_key: bytes) -> NamespaceRow:
    """Decode a namespace record; StoreCorruptError."""
    where = f"namespace record {path_key!r}"
    flags, namespace_id, path_len, tokenizer_len, tail = _NAMESPACE.decode(raw, where)
    require_length(where, tail, path_len + tokenizer_len)
    require_same(where, "path", path_key, tail[:path_len])
    path = decode_text(tail[:path_len], where, "path")
    tokenizer = decode_text(tail[path_len:], where, "tokenizer")
    return NamespaceRow(namespace_id, path, tokenizer, bool(flags & _DELETING))


def encode_erasure(lsn: OutputId) -> bytes:
    """Encode the LSN up to which deleted texts are still to be erased from the disk."""
    return _ERASURE.encode(lsn)


def decode_erasure(raw: bytes) -> OutputId:
    """Decode the erasure record; StoreCorruptError."""
    (lsn,) = _ERASURE.decode_fixed(raw, "erasure record")
    if not lsn:
        raise corrupt("erasure record: LSN must not be zero")
    return int(lsn)


def encode_principal(number: int, name: str) -> bytes:
    """Encode the record of a principal; its key is ``principal_key(number)``."""
    raw_name = encode_text(name)
    return _PRINCIPAL.encode(number, len(raw_name), 0, tail=raw_name)


def decode_principal(raw: bytes, key: bytes) -> tuple[int, str]:
    """Decode the record of a principal to (number, name); StoreCorruptError."""
    where = f"principal record {key.hex()}"
    _, number, name_len, zero, tail = _PRINCIPAL.decode(raw, where)
    require_length(where, tail, name_len)
    require_no_flags(where, zero)
    require_same(where, "number", key, principal_key(number))
    name = decode_text(tail, where, "name")
    try:
        if not validate_principal(name):
            raise corrupt(f"{where}: name must not be empty")
    except InvalidInputError as error:
        raise corrupt(f"{where}: name must be that of a principal", error.expected, error.got) from None
    return number, name


def encode_state(namespace_id: int, name: str, value: bytes) -> bytes:
    """Encode a state record: a small derived blob of a namespace."""
    raw_name = encode_text(name)
    return _STATE.encode(namespace_id, len(raw_name), 0, len(value), tail=raw_name + value)


def decode_state(raw: bytes, key: bytes) -> bytes:
    """Decode the value of a state record; StoreCorruptError."""
    where = f"state record {key.hex()}"
    _, namespace_id, name_len, zero, value_len, tail = _STATE.decode(raw, where)
    require_length(where, tail, name_len + value_len)
    require_no_flags(where, zero)
    require_same(where, "namespace or name", key, state_key(namespace_id, "") + tail[:name_len])
    value: bytes = tail[name_len:]
    return value


def encode_segment(namespace_id: int, r: SegmentRecord) -> bytes:
    """Encode a segment record; its key is ``namespace_row_key(namespace_id, r.first_lsn)``."""
    name = encode_text(r.name)
    return _SEGMENT.encode(
        namespace_id, len(name), 0, r.first_lsn, r.last_lsn, r.outputs, r.tokens, r.file_bytes, tail=name
    )


def decode_segment(raw: bytes, key: bytes) -> tuple[int, SegmentRecord]:
    """Decode a segment record to (namespace number, record); StoreCorruptError."""
    where = f"segment record {key.hex()}"
    _, namespace_id, name_len, zero, first, last, *sizes, tail = _SEGMENT.decode(raw, where)
    require_length(where, tail, name_len)
    require_no_flags(where, zero)
    require_same(where, "range", key, namespace_row_key(namespace_id, first))
    name = decode_text(tail, where, "name")
    if not first <= last or not name or "/" in name or "\0" in name:
        raise corrupt(
            f"{where}: range must have first <= last, name must be a file name", got=(first, last, name)
        )
    return namespace_id, SegmentRecord(name, first, last, *sizes)


def encode_tombstone(namespace_id: int, output_id: OutputId, tokens: int) -> bytes:
    """Encode a tombstone; its key is ``namespace_row_key(namespace_id, output_id)``."""
    return _TOMBSTONE.encode(namespace_id, tokens, output_id)


def decode_tombstone(raw: bytes, key: bytes) -> tuple[OutputId, int]:
    """Decode a tombstone to (id, token count) of the deleted output; StoreCorruptError."""
    where = f"tombstone {key.hex()}"
    namespace_id, tokens, output_id = _TOMBSTONE.decode_fixed(raw, where)
    require_same(where, "output", key, namespace_row_key(namespace_id, output_id))
    return output_id, tokens


def encode_pending(ranges: Sequence[Range]) -> bytes:
    """Encode the ranges of rows that an append of several transactions has written so far."""
    return _PENDING.encode(len(ranges), tail=b"".join(_RANGE.pack(first, last) for first, last in ranges))


def decode_pending(raw: bytes, key: bytes) -> list[Range]:
    """Decode the ranges of an unfinished append; StoreCorruptError."""
    where = f"unfinished append {key.hex()}"
    _, count, tail = _PENDING.decode(raw, where)
    require_length(where, tail, count * _RANGE.size)
    ranges = list(_RANGE.iter_unpack(tail))
    if not all(0 < first <= last for first, last in ranges):
        raise corrupt(f"{where}: ranges must have first <= last", got=ranges[:3])
    return ranges


def encode_deletion(row: DeletionRow) -> bytes:
    """Encode a deletion; its key is ``log_key(row.lsn)``."""
    return _DELETION.encode(row.lsn, row.output_id, row.namespace_id, 0, row.uuid)


def decode_deletion(raw: bytes, key: bytes) -> DeletionRow:
    """Decode a deletion; StoreCorruptError."""
    where = f"deletion {key.hex()}"
    lsn, output_id, namespace_id, zero, uuid = _DELETION.decode_fixed(raw, where)
    require_no_flags(where, zero)
    require_same(where, "LSN", key, log_key(lsn))
    if not output_id < lsn or (not output_id and any(uuid)):
        raise corrupt(f"{where}: output must be an earlier one, or none without a uuid", got=output_id)
    return DeletionRow(lsn, output_id, namespace_id, uuid)


def encode_history(history: History) -> bytes:
    """Encode the history of the log."""
    tail = b"".join(_RUN.pack(first, run) for first, run in history.runs)
    return _HISTORY.encode(history.floor, len(history.runs), tail=tail)


def decode_history(raw: bytes) -> History:
    """Decode the history of the log; StoreCorruptError."""
    where = "history record"
    _, floor, count, tail = _HISTORY.decode(raw, where)
    require_length(where, tail, count * _RUN.size)
    runs = tuple(_RUN.iter_unpack(tail))
    ascending = all(one[0] < other[0] for one, other in itertools.pairwise(runs))
    if count > MAX_RUNS or not ascending or not all(first and run for first, run in runs):
        raise corrupt(f"{where}: runs must have ascending LSNs and numbers", got=runs[:3])
    return History(floor, runs)
