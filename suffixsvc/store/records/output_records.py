"""Keys and records of outputs, payloads, namespaces and counters. The contract is ``docs/format.md``.

Integers in values are little endian, integers in keys big endian, so that LMDB's byte order is numeric order.
Framing of values is in ``framing.py``.

Decoders check lengths before they use them, and raise a :class:`StoreCorruptError` that names the record and
the reason. This module does not use LMDB.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.store.records.framing import (
    CHECKSUM,
    RECORD_VERSION,
    append_checksum,
    corrupt,
    decode_text,
    decode_tokens,
    open_record,
    require_length,
    require_no_flags,
    require_same,
)
from suffixsvc.types import TokenArray

__all__ = [
    "COUNTERS_KEY",
    "NODE_KEY",
    "OLDEST_SCHEMA",
    "SCHEMA_KEY",
    "SCHEMA_VERSION",
    "Counters",
    "LogRecord",
    "NamespaceRow",
    "Payload",
    "PayloadKey",
    "content_hash",
    "decode_counters",
    "decode_log",
    "decode_namespace",
    "decode_payload",
    "decode_refs",
    "decode_schema",
    "encode_counters",
    "encode_log",
    "encode_namespace",
    "encode_payload",
    "encode_refs",
    "encode_schema",
    "expiry_key",
    "log_key",
    "namespace_row_key",
    "outline_of",
    "payload_key",
]

#: schema of a folder: its databases and the meaning of their keys
SCHEMA_VERSION: Final = 3
#: folders of this schema and later ones are upgraded to the current schema when they are opened
OLDEST_SCHEMA: Final = 1
#: keys of the database "meta"
SCHEMA_KEY: Final = b"schema"
COUNTERS_KEY: Final = b"counters"
NODE_KEY: Final = b"node"

_FLAG_INCOMPLETE: Final = 1
_FLAG_CORPUS: Final = 2
#: flag of a namespace record
_FLAG_DELETING: Final = 1

_SCHEMA = struct.Struct("<4sHHIQ")
_COUNTERS = struct.Struct("<4sHHIQQQQQ")
_NAMESPACE = struct.Struct("<4sHHIHH")
_LOG = struct.Struct("<4sHHQIIQ16sIIHHI")
#: version 2, of schema 3; up to the uuid as in version 1
_LOG_2 = struct.Struct("<4sHHQIIQ16sIIHHI16sQIHH")
_PAYLOAD = struct.Struct("<4sHHII16sII")
_REFS = struct.Struct("<4sHHII16sQ")
_LABEL = struct.Struct("<HH")
_COUNT = struct.Struct("<I")

_LSN_KEY = struct.Struct(">Q")
_NS_LSN_KEY = struct.Struct(">IQ")
_PAYLOAD_KEY = struct.Struct(">I16sI")


@dataclass(frozen=True, slots=True, order=True)
class PayloadKey:
    """Key of a payload. ``slot`` distinguishes contents of one namespace with equal hashes."""

    namespace_id: int
    digest: bytes  #: 16 bytes, xxh3-128 of the content
    slot: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One occurrence of an output. Times are whole microseconds since the epoch; TTL 0: never expires."""

    lsn: int
    payload: PayloadKey
    token_count: int
    written_us: int
    ttl_seconds: int
    incomplete: bool
    corpus: bool
    prompt_tail: TokenArray
    labels: dict[str, str]
    uuid: bytes = b""  #: b"" in a row of a folder before schema 3, which has none of the following fields
    node_id: int = 0
    principal: int = 0
    session_id: str = ""

    @property
    def expires_us(self) -> int | None:
        """Time at which the output expires, or None."""
        return self.written_us + self.ttl_seconds * 1_000_000 if self.ttl_seconds else None


@dataclass(frozen=True, slots=True)
class Payload:
    """Tokens and segment lengths, shared by all occurrences of an output; the array is read-only."""

    token_ids: TokenArray
    segment_lens: tuple[int, ...]

    def content(self) -> bytes:
        """Return the canonical bytes: segment count, segment lengths, token ids."""
        lens = np.asarray(self.segment_lens, dtype="<u4")
        return struct.pack("<I", len(lens)) + lens.tobytes() + self.token_ids.astype("<i4").tobytes()


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """A namespace and its number in keys. ``deleting``: its contents are being deleted, then its row."""

    namespace_id: int
    path: str
    tokenizer: str
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals written with every transaction. ``last_lsn`` never decreases."""

    last_lsn: int = 0
    last_namespace_id: int = 0
    outputs: int = 0
    payloads: int = 0
    tokens: int = 0  #: of all occurrences
    txn: int = 0  #: LMDB's number of the transaction that wrote this


def content_hash(content: bytes) -> bytes:
    """Return the xxh3-128 (canonical, 16 bytes) of :meth:`Payload.content`."""
    return xxhash.xxh3_128_digest(content)


# --- keys -------------------------------------------------------------------------------------------


def log_key(lsn: int) -> bytes:
    """Return the key of a log record."""
    return _LSN_KEY.pack(lsn)


def namespace_row_key(namespace_id: int, lsn: int) -> bytes:
    """Return the key of an entry of ``by_namespace``, a segment or a tombstone."""
    return _NS_LSN_KEY.pack(namespace_id, lsn)


def expiry_key(expires_us: int, lsn: int) -> bytes:
    """Return the key of an entry of ``expiry``."""
    return log_key(expires_us) + log_key(lsn)


def payload_key(key: PayloadKey) -> bytes:
    """Return the key of a payload or reference count."""
    return _PAYLOAD_KEY.pack(key.namespace_id, key.digest, key.slot)


# --- records ----------------------------------------------------------------------------------------


def encode_schema(schema: int, created_us: int) -> bytes:
    """Encode the schema record."""
    return append_checksum(_SCHEMA.pack(b"SXHD", RECORD_VERSION, 0, schema, created_us))


def decode_schema(raw: bytes) -> tuple[int, int]:
    """Decode the schema record to (version, creation time in microseconds); StoreCorruptError."""
    where = "schema record"
    flags, schema, created_us = open_record(raw, _SCHEMA, b"SXHD", where)
    require_length(raw, _SCHEMA.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    return schema, created_us


def encode_counters(c: Counters) -> bytes:
    """Encode the counters record."""
    fields = (c.last_namespace_id, c.last_lsn, c.outputs, c.payloads, c.tokens, c.txn)
    return append_checksum(_COUNTERS.pack(b"SXCT", RECORD_VERSION, 0, *fields))


def decode_counters(raw: bytes) -> Counters:
    """Decode the counters record; StoreCorruptError."""
    where = "counters record"
    flags, namespace_id, lsn, outputs, payloads, tokens, txn = open_record(raw, _COUNTERS, b"SXCT", where)
    require_length(raw, _COUNTERS.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    return Counters(lsn, namespace_id, outputs, payloads, tokens, txn)


def encode_namespace(row: NamespaceRow) -> bytes:
    """Encode a namespace record."""
    path = row.path.encode("utf-8", "surrogatepass")
    tokenizer = row.tokenizer.encode("utf-8", "surrogatepass")
    flags = _FLAG_DELETING * row.deleting
    head = _NAMESPACE.pack(b"SXNS", RECORD_VERSION, flags, row.namespace_id, len(path), len(tokenizer))
    return append_checksum(head + path + tokenizer)


def decode_namespace(raw: bytes, path_key: bytes) -> NamespaceRow:
    """Decode a namespace record; StoreCorruptError."""
    where = f"namespace record {path_key!r}"
    flags, namespace_id, path_len, tokenizer_len = open_record(raw, _NAMESPACE, b"SXNS", where)
    start, middle = _NAMESPACE.size, _NAMESPACE.size + path_len
    require_length(raw, middle + tokenizer_len + CHECKSUM.size, where)
    require_no_flags(where, flags & ~_FLAG_DELETING)
    require_same(where, "path", path_key, raw[start:middle])
    path = decode_text(raw[start:middle], where, "path")
    tokenizer = decode_text(raw[middle : middle + tokenizer_len], where, "tokenizer")
    return NamespaceRow(namespace_id, path, tokenizer, bool(flags & _FLAG_DELETING))


def encode_log(r: LogRecord) -> bytes:
    """Encode a log record: version 2, or version 1 if it has no uuid."""
    tail = r.prompt_tail.astype("<i4").tobytes()
    labels = bytearray()
    for name, value in sorted(r.labels.items()):
        raw_name, raw_value = name.encode("utf-8", "surrogatepass"), value.encode("utf-8", "surrogatepass")
        labels += _LABEL.pack(len(raw_name), len(raw_value)) + raw_name + raw_value
    fields = (
        _FLAG_INCOMPLETE * r.incomplete | _FLAG_CORPUS * r.corpus,
        r.lsn,
        r.payload.namespace_id,
        r.ttl_seconds,
        r.written_us,
        r.payload.digest,
        r.payload.slot,
        r.token_count,
        len(r.prompt_tail),
        len(r.labels),
        len(labels),
    )
    if not r.uuid:
        return append_checksum(_LOG.pack(b"SXLG", RECORD_VERSION, *fields) + tail + labels)
    session = r.session_id.encode("utf-8", "surrogatepass")
    head = _LOG_2.pack(b"SXLG", 2, *fields, r.uuid, r.node_id, r.principal, len(session), 0)
    return append_checksum(head + tail + labels + session)


def decode_log(raw: bytes, lsn: int) -> LogRecord:
    """Decode a log record of version 1 or 2; StoreCorruptError."""
    where = f"log record {lsn}"
    is_old = raw[4:6] != b"\2\0"
    layout = _LOG if is_old else _LOG_2
    fields = open_record(raw, layout, b"SXLG", where, 1 if is_old else 2)
    flags, own_lsn, namespace_id, ttl, written_us, digest, slot, token_count = fields[:8]
    tail_count, label_count, labels_len = fields[8:11]
    uuid, node_id, principal, session_len, zero = (b"", 0, 0, 0, 0) if is_old else fields[11:]
    tail_end = layout.size + 4 * tail_count
    labels_end = tail_end + labels_len
    require_length(raw, labels_end + session_len + CHECKSUM.size, where)
    require_no_flags(where, flags & ~(_FLAG_INCOMPLETE | _FLAG_CORPUS) | zero)
    require_same(where, "LSN", lsn, own_lsn)
    if tail_count > PROMPT_TAIL_TOKENS:
        raise corrupt(where, "prompt tail is too long", f"<= {PROMPT_TAIL_TOKENS} tokens", tail_count)
    if token_count == 0:
        raise corrupt(where, "output must have at least one token", got=0)
    return LogRecord(
        lsn=lsn,
        payload=PayloadKey(namespace_id, digest, slot),
        token_count=token_count,
        written_us=written_us,
        ttl_seconds=ttl,
        incomplete=bool(flags & _FLAG_INCOMPLETE),
        corpus=bool(flags & _FLAG_CORPUS),
        prompt_tail=decode_tokens(raw, layout.size, tail_count, where),
        labels=_decode_labels(raw[tail_end:labels_end], label_count, where),
        uuid=uuid,
        node_id=node_id,
        principal=principal,
        session_id=decode_text(raw[labels_end : labels_end + session_len], where, "session id"),
    )


def outline_of(raw: bytes, lsn: int) -> tuple[int, int, int, bool]:
    """Decode only (tokens, time written, TTL, corpus) of a log record; StoreCorruptError.

    The checksum is not verified, so that a whole log can be scanned quickly.
    """
    where = f"log record {lsn}"
    if len(raw) < _LOG.size:
        raise corrupt(where, "record is too short", f"at least {_LOG.size} bytes", f"{len(raw)} bytes")
    fields = _LOG.unpack_from(raw)
    require_same(where, "magic", b"SXLG", fields[0])
    if fields[1] not in (1, 2):
        raise corrupt(where, "unknown record version", "1 or 2", fields[1])
    require_same(where, "LSN", lsn, fields[3])
    return fields[9], fields[6], fields[5], bool(fields[2] & _FLAG_CORPUS)


def _decode_labels(raw: bytes, count: int, where: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    for _ in range(count):
        if at + _LABEL.size > len(raw):
            raise corrupt(where, "labels are truncated", f"{count} labels", len(labels))
        name_len, value_len = _LABEL.unpack_from(raw, at)
        middle = at + _LABEL.size + name_len
        if middle + value_len > len(raw):
            raise corrupt(where, "a label runs past the end", f"{count} labels", len(labels))
        name = decode_text(raw[at + _LABEL.size : middle], where, "label name")
        labels[name] = decode_text(raw[middle : middle + value_len], where, "label value")
        at = middle + value_len
    if at != len(raw) or len(labels) != count:
        raise corrupt(where, "labels must fill their field", f"{count} labels", len(labels))
    return labels


def encode_payload(key: PayloadKey, tokens: int, content: bytes) -> bytes:
    """Encode a payload record from :meth:`Payload.content`, which it holds unchanged."""
    (segments,) = _COUNT.unpack_from(content)
    head = _PAYLOAD.pack(b"SXPL", RECORD_VERSION, 0, key.namespace_id, key.slot, key.digest, tokens, segments)
    return append_checksum(head + content[_COUNT.size :])


def decode_payload(raw: bytes, key: PayloadKey) -> Payload:
    """Decode a payload record; StoreCorruptError."""
    where = f"payload record {payload_key(key).hex()}"
    flags, namespace_id, slot, digest, tokens, segments = open_record(raw, _PAYLOAD, b"SXPL", where)
    tokens_at = _PAYLOAD.size + 4 * segments
    require_length(raw, tokens_at + 4 * tokens + CHECKSUM.size, where)
    require_no_flags(where, flags)
    require_same(where, "payload", key, PayloadKey(namespace_id, digest, slot))
    lens = tuple(np.frombuffer(raw, dtype="<u4", count=segments, offset=_PAYLOAD.size).tolist())
    if tokens == 0 or 0 in lens or sum(lens) != tokens:
        raise corrupt(where, "segment lengths do not add up", f"{tokens} tokens", f"{sum(lens)} tokens")
    return Payload(decode_tokens(raw, tokens_at, tokens, where), lens)


def encode_refs(key: PayloadKey, count: int) -> bytes:
    """Encode the reference count of a payload."""
    return append_checksum(
        _REFS.pack(b"SXRC", RECORD_VERSION, 0, key.namespace_id, key.slot, key.digest, count)
    )


def decode_refs(raw: bytes, key: PayloadKey) -> int:
    """Decode the reference count of a payload; StoreCorruptError."""
    where = f"reference count {payload_key(key).hex()}"
    flags, namespace_id, slot, digest, count = open_record(raw, _REFS, b"SXRC", where)
    require_length(raw, _REFS.size + CHECKSUM.size, where)
    require_no_flags(where, flags)
    require_same(where, "payload", key, PayloadKey(namespace_id, digest, slot))
    if count == 0:
        raise corrupt(where, "count must not be zero")
    return int(count)
