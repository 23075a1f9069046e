"""Deterministic ids of session outputs: closing the same text under the same session id gives the same id.

    uuid   := digest of (session id, namespace, position of the first output token, incomplete or not, text),
              length of the text
    digest := first 12 bytes of xxh3-128        length := u32, big endian

A repeated close, as of a client that lost the reply, is therefore logged once, also across a restart. The id
of an incomplete output is enough to decide whether a live session resumes the session that wrote it: the
live text then begins with a text of this id.
"""

from __future__ import annotations

from typing import Final

import xxhash

from suffixsvc.types import TokenArray

__all__ = ["continues", "output_uuid"]

_DIGEST_BYTES: Final = 12
_LENGTH_BYTES: Final = 4


def output_uuid(session_id: str, namespace: str, text: TokenArray, first: int, *, incomplete: bool) -> bytes:
    """The id of a session's output.

    Args:
        session_id: id of the session.
        namespace: path of its namespace.
        text: int32[n], all tokens so far, prompt and context included.
        first: position of the first output token.
        incomplete: the model had not finished.
    """
    hashed = xxhash.xxh3_128()
    for part in (session_id, namespace):
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(4, "big") + raw)
    hashed.update(first.to_bytes(8, "big") + bytes([incomplete]))
    hashed.update(text.astype("<i4", copy=False).tobytes())
    return hashed.digest()[:_DIGEST_BYTES] + len(text).to_bytes(_LENGTH_BYTES, "big")


def continues(uuid: bytes, session_id: str, namespace: str, text: TokenArray, first: int) -> bool:
    """Whether a text begins with the text that an incomplete output of this id was committed with."""
    length = int.from_bytes(uuid[_DIGEST_BYTES:], "big")
    if len(uuid) != _DIGEST_BYTES + _LENGTH_BYTES or not first < length <= len(text):
        return False
    return output_uuid(session_id, namespace, text[:length], first, incomplete=True) == uuid
