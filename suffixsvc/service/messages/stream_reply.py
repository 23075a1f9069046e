"""Serialised stream replies around a batch of answers that is serialised already."""

from __future__ import annotations

from typing import Final

__all__ = ["stream_reply"]

# tags of StreamReply; a test compares them with protobuf's output
_ID: Final = b"\x08"
_STEPS: Final = b"\x1a"


def stream_reply(message_id: int, batch: bytes) -> bytes:
    """A serialised StreamReply of an id and ``batch``, a serialised StepBatchReply."""
    head = _ID + _varint(message_id) if message_id else b""
    return b"".join((head, _STEPS, _varint(len(batch)), batch))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
