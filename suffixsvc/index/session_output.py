"""Output of a session as the record that is stored, with a deterministic uuid.

Closing the same text under the same session id gives the same uuid:

    uuid   := digest of (session id, namespace, position of the first output token, incomplete or not, text),
              length of the text
    digest := first 12 bytes of xxh3-128        length := u32, big endian

A repeated close, as of a client that lost the reply, is therefore logged once, also across a restart. The
uuid of an incomplete output is enough to decide whether a live session resumes the session that wrote it: the
live text then begins with a text of this uuid.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import xxhash

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.types import Labels, NewOutput, TokenArray

_DIGEST_BYTES: Final = 12
_LENGTH_BYTES: Final = 4


def output_uuid(session_id: str, namespace: str, text: TokenArray, first: int, *, incomplete: bool) -> bytes:
    """The uuid of a session's output.

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
    """Whether a text begins with the text that an incomplete output of this uuid was committed with."""
    length = int.from_bytes(uuid[_DIGEST_BYTES:], "big")
    if len(uuid) != _DIGEST_BYTES + _LENGTH_BYTES or not first < length <= len(text):
        return False
    return output_uuid(session_id, namespace, text[:length], first, incomplete=True) == uuid


def output_runs(native: core.Session) -> list[tuple[int, int]]:
    """First and last position, exclusive, of each non-empty run of output tokens."""
    return [(first, last) for first, last in native.output_runs() if last > first]


def output_of(
    native: core.Session,
    namespace: str,
    labels: Labels,
    *,
    incomplete: bool,
    session_id: str,
    principal: str,
) -> NewOutput | None:
    """The output of a session as it is stored; None where the session has no output tokens."""
    runs = output_runs(native)
    if not runs:
        return None
    first = runs[0][0]
    uuid = b""
    if session_id:
        uuid = output_uuid(session_id, namespace, native.text(0, len(native)), first, incomplete=incomplete)
    return NewOutput(
        namespace=namespace,
        token_ids=np.concatenate([native.text(a, b) for a, b in runs]),
        segment_lens=tuple(b - a for a, b in runs),
        prompt_tail=native.text(max(0, first - PROMPT_TAIL_TOKENS), first),
        labels=labels,
        incomplete=incomplete,
        uuid=uuid,
        session_id=session_id,
        principal=principal,
    )
