"""Tokenizer fingerprints: two are equal if and only if the tokenizers map the same ids to the same bytes.

The value is xxh3-64 over (id, token bytes) of every id in use, then over the special ids. Unused and
padding entries are skipped: a GGUF pads its vocabulary with ``[PADn]`` where a ``tokenizer.json``
ends, and both must have the same fingerprint.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping

import xxhash

_PADDING = re.compile(rb"\[PAD\d+\]")
_HEAD = struct.Struct("<ii")  # id, bytes


def tokenizer_fingerprint(
    tokens: Iterable[tuple[int, bytes | None]], special_ids: Mapping[str, int | None]
) -> str:
    """Fingerprint of a vocabulary.

    Args:
        tokens: (id, bytes) in any order. None, empty and ``[PADn]`` entries count as unused.
        special_ids: "bos" and "eos", each an id; None or a negative id counts as absent.

    Returns:
        ``"xxh3:"`` and 16 hexadecimal digits.
    """
    used = sorted((i, b) for i, b in tokens if b and not (b.startswith(b"[PAD") and _PADDING.fullmatch(b)))
    digest = xxhash.xxh3_64(b"".join([_HEAD.pack(i, len(b)) + b for i, b in used]))
    for name in ("bos", "eos"):
        value = special_ids.get(name)
        digest.update(struct.pack("<i", -1 if value is None or value < 0 else value))
    return f"xxh3:{digest.hexdigest()}"
