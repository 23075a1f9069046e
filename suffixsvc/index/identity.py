"""Ids of what sessions write: the same text closed again by the same session has the same id.

    uuid   := digest of (session id, namespace, place of the first output token, incomplete or not, text)
              length of the text
    digest := first 12 bytes of xxh3-128        length := u32, big endian

So a close that is repeated, by a client that never got the answer, say, logs nothing twice, also after a
restart; and the id of an incomplete output alone tells whether a session of now has resumed the one that left
it: its text begins with the one that has this id.
"""

from __future__ import annotations

from typing import Final

import xxhash

from suffixsvc.types import TokenArray

__all__ = ["continues", "output_uuid"]

_DIGEST_BYTES: Final = 12
_LENGTH_BYTES: Final = 4


def output_uuid(session_id: str, namespace: str, text: TokenArray, first: int, *, incomplete: bool) -> bytes:
    """The id of what a session has written.

    Args:
        text: everything so far, prompt and context included.
        first: where its first output token is.
    """
    hashed = xxhash.xxh3_128()
    for part in (session_id, namespace):
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(4, "big") + raw)
    hashed.update(first.to_bytes(8, "big") + bytes([incomplete]))
    hashed.update(text.astype("<i4", copy=False).tobytes())
    return hashed.digest()[:_DIGEST_BYTES] + len(text).to_bytes(_LENGTH_BYTES, "big")


def continues(uuid: bytes, session_id: str, namespace: str, text: TokenArray, first: int) -> bool:
    """Whether a text begins with the one that an incomplete output of this id was committed with."""
    length = int.from_bytes(uuid[_DIGEST_BYTES:], "big")
    if len(uuid) != _DIGEST_BYTES + _LENGTH_BYTES or not first < length <= len(text):
        return False
    return output_uuid(session_id, namespace, text[:length], first, incomplete=True) == uuid
