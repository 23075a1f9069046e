"""Files that are one response each: plain text, source code."""

from __future__ import annotations

from collections.abc import Iterable

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.lines import too_long

__all__ = ["BinaryFile", "read_text"]

#: a zero byte in so many is what git takes for a sign of a binary
_LOOK_AT = 8000


class BinaryFile(Exception):
    """The file is no text."""


def read_text(pieces: Iterable[bytes], limit: int) -> str:
    """A whole file.

    Raises:
        BinaryFile: it is none.
        InvalidInputError: it has more than ``limit`` bytes, or is not in the encoding it is read in.
    """
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        if size < _LOOK_AT and b"\0" in piece[: _LOOK_AT - size]:
            raise BinaryFile
        size += len(piece)
        if size > limit:
            raise too_long("file", limit)
        parts.append(piece)
    try:
        return b"".join(parts).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            "no text in this encoding",
            got=f"{error.reason} at byte {error.start}",
            remedy="Name its encoding.",
        ) from None
