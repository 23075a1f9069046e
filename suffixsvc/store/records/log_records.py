"""Records of the log, its payloads and their reference counts. The contract is ``docs/format.md``.

Decoders check lengths before they use them, and raise a :class:`StoreCorruptError` that names the record and
the reason.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import xxhash

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.store.records.framing import (
    Layout,
    corrupt,
    decode_text,
    decode_tokens,
    encode_text,
    require_length,
    require_no_flags,
    require_same,
)
from suffixsvc.store.records.keys import PayloadKey, generated_uuid, payload_key
from suffixsvc.types import TokenArray

_INCOMPLETE: Final = 1
_CORPUS: Final = 2

_LOG_FIELDS = "QIIQ16sIIHHI"
_LOG = Layout(b"SXLG", _LOG_FIELDS, flags=_INCOMPLETE | _CORPUS)
#: of schema 3
_LOG_2 = Layout(b"SXLG", _LOG_FIELDS + "16sQIHH", version=2, flags=_INCOMPLETE | _CORPUS)
_PAYLOAD = Layout(b"SXPL", "II16sII")
_REFS = Layout(b"SXRC", "II16sQ")
_LABEL = struct.Struct("<HH")
_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One stored output. Times are whole microseconds since the epoch; TTL 0: never expires."""

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

    @property
    def has_chosen_uuid(self) -> bool:
        """Whether the writer chose the row's uuid, so that it is in the index."""
        return bool(self.uuid) and self.uuid != generated_uuid(self.node_id, self.lsn)


@dataclass(frozen=True, slots=True)
class Payload:
    """Tokens and run lengths, shared by all equal outputs; the array is read-only."""

    token_ids: TokenArray
    segment_lens: tuple[int, ...]

    def content(self) -> bytes:
        """Return the canonical bytes: run count, run lengths, token ids."""
        lens = np.asarray(self.segment_lens, dtype="<u4")
        return _COUNT.pack(len(lens)) + lens.tobytes() + self.token_ids.astype("<i4").tobytes()


def content_hash(content: bytes) -> bytes:
    """Return the xxh3-128 (canonical, 16 bytes) of :meth:`Payload.content`."""
    return xxhash.xxh3_128_digest(content)


def encode_log(r: LogRecord) -> bytes:
    """Encode a log record: version 2, or version 1 if it has no uuid."""
    tail = r.prompt_tail.astype("<i4").tobytes()
    labels = bytearray()
    for name, value in sorted(r.labels.items()):
        raw_name, raw_value = encode_text(name), encode_text(value)
        labels += _LABEL.pack(len(raw_name), len(raw_value)) + raw_name + raw_value
    key = r.payload
    fields = (r.lsn, key.namespace_id, r.ttl_seconds, r.written_us, key.digest, key.slot, r.token_count)
    counts = (len(r.prompt_tail), len(r.labels), len(labels))
    flags = _INCOMPLETE * r.incomplete | _CORPUS * r.corpus
    if not r.uuid:
        return _LOG.encode(*fields, *counts, flags=flags, tail=tail + labels)
    session = encode_text(r.session_id)
    identity = (r.uuid, r.node_id, r.principal, len(session), 0)
    return _LOG_2.encode(*fields, *counts, *identity, flags=flags, tail=tail + labels + session)


def decode_log(raw: bytes, lsn: int) -> LogRecord:
    """Decode a log record of version 1 or 2; StoreCorruptError."""
    where = f"log record {lsn}"
    is_old = raw[4:6] != b"\2\0"
    flags, *fields, tail = (_LOG if is_old else _LOG_2).decode(raw, where)
    own_lsn, namespace_id, ttl, written_us, digest, slot, token_count, *fields = fields
    tail_count, label_count, labels_len, *identity = fields
    uuid, node_id, principal, session_len, zero = identity or (b"", 0, 0, 0, 0)
    labels_at = 4 * tail_count
    session_at = labels_at + labels_len
    require_length(where, tail, session_at + session_len)
    require_no_flags(where, zero)
    require_same(where, "LSN", lsn, own_lsn)
    if tail_count > PROMPT_TAIL_TOKENS:
        raise corrupt(f"{where}: prompt tail is too long", f"<= {PROMPT_TAIL_TOKENS} tokens", tail_count)
    if token_count == 0:
        raise corrupt(f"{where}: output must have at least one token", got=0)
    return LogRecord(
        lsn=lsn,
        payload=PayloadKey(namespace_id, digest, slot),
        token_count=token_count,
        written_us=written_us,
        ttl_seconds=ttl,
        incomplete=bool(flags & _INCOMPLETE),
        corpus=bool(flags & _CORPUS),
        prompt_tail=decode_tokens(tail, 0, tail_count, where),
        labels=_decode_labels(tail[labels_at:session_at], label_count, where),
        uuid=uuid,
        node_id=node_id,
        principal=principal,
        session_id=decode_text(tail[session_at:], where, "session id"),
    )


class LogOutline(NamedTuple):
    """Fields of a :class:`LogRecord` that have a fixed place, and the length of others."""

    tokens: int
    written_us: int
    ttl_seconds: int
    corpus: bool
    principal: int
    tail_tokens: int
    #: of labels and session id
    attribute_bytes: int


def outline_of(raw: bytes, lsn: int) -> LogOutline:
    """Decode only the fixed fields of a log record; StoreCorruptError.

    The checksum is not verified, so that a whole log can be scanned quickly.
    """
    where = f"log record {lsn}"
    _, version, flags, own_lsn, _, ttl, written_us, _, _, tokens, tail, _, labels = _LOG.peek(raw, where)
    if version not in (1, 2):
        raise corrupt(f"{where}: unknown record version", "1 or 2", version)
    require_same(where, "LSN", lsn, own_lsn)
    principal, session, _ = _LOG_2.peek(raw, where)[-3:] if version == 2 else (0, 0, 0)
    return LogOutline(tokens, written_us, ttl, bool(flags & _CORPUS), principal, tail, labels + session)


def _decode_labels(raw: bytes, count: int, where: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    for _ in range(count):
        if at + _LABEL.size > len(raw):
            raise corrupt(f"{where}: labels are truncated", f"{count} labels", len(labels))
        name_len, value_len = _LABEL.unpack_from(raw, at)
        middle = at + _LABEL.size + name_len
        if middle + value_len > len(raw):
            raise corrupt(f"{where}: a label runs past the end", f"{count} labels", len(labels))
        name = decode_text(raw[at + _LABEL.size : middle], where, "label name")
        labels[name] = decode_text(raw[middle : middle + value_len], where, "label value")
        at = middle + value_len
    if at != len(raw) or len(labels) != count:
        raise corrupt(f"{where}: labels must fill their field", f"{count} labels", len(labels))
    return labels


def encode_payload(key: PayloadKey, tokens: int, content: bytes) -> bytes:
    """Encode a payload record from :meth:`Payload.content`, which it holds unchanged."""
    (segments,) = _COUNT.unpack_from(content)
    return _PAYLOAD.encode(
        key.namespace_id, key.slot, key.digest, tokens, segments, tail=content[_COUNT.size :]
    )


def decode_payload(raw: bytes, key: PayloadKey) -> Payload:
    """Decode a payload record; StoreCorruptError."""
    where = f"payload record {payload_key(key).hex()}"
    _, namespace_id, slot, digest, tokens, segments, tail = _PAYLOAD.decode(raw, where)
    require_length(where, tail, 4 * segments + 4 * tokens)
    require_same(where, "payload", key, PayloadKey(namespace_id, digest, slot))
    lens = tuple(np.frombuffer(tail, dtype="<u4", count=segments).tolist())
    if tokens == 0 or 0 in lens or sum(lens) != tokens:
        raise corrupt(f"{where}: run lengths do not add up", f"{tokens} tokens", f"{sum(lens)} tokens")
    return Payload(decode_tokens(tail, 4 * segments, tokens, where), lens)


def payload_of(record: LogRecord, raw: bytes) -> Payload:
    """Decode the payload of a row; StoreCorruptError also if it has another number of tokens."""
    payload = decode_payload(raw, record.payload)
    if len(payload.token_ids) != record.token_count:
        raise corrupt(
            f"log record {record.lsn} must have the token count of its payload",
            f"{record.token_count} tokens",
            f"{len(payload.token_ids)} tokens",
        )
    return payload


def encode_refs(key: PayloadKey, count: int) -> bytes:
    """Encode the reference count of a payload."""
    return _REFS.encode(key.namespace_id, key.slot, key.digest, count)


def decode_refs(raw: bytes, key: PayloadKey) -> int:
    """Decode the reference count of a payload; StoreCorruptError."""
    where = f"reference count {payload_key(key).hex()}"
    namespace_id, slot, digest, count = _REFS.decode_fixed(raw, where)
    require_same(where, "payload", key, PayloadKey(namespace_id, digest, slot))
    if count == 0:
        raise corrupt(f"{where}: count must not be zero")
    return int(count)
