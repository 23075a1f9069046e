"""Reader of text files, each of which is one response."""

from __future__ import annotations

from collections.abc import Iterable

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.lines import too_long

#: first bytes in which a zero byte marks a binary file, as in git
_PROBE_BYTES = 8000


class BinaryFile(Exception):
    """The file is binary."""


def read_text(pieces: Iterable[bytes], limit: int) -> str:
    """Return the text of a file.

    Args:
        pieces: its bytes as UTF-8.
        limit: size limit in bytes.

    Raises:
        BinaryFile: it is a binary file.
        InvalidInputError: it has more than ``limit`` bytes, or bytes that its encoding does not allow.
    """
    parts: list[bytes] = []
    size = 0
    for piece in pieces:
        if size < _PROBE_BYTES and b"\0" in piece[: _PROBE_BYTES - size]:
            raise BinaryFile
        size += len(piece)
        if size > limit:
            raise too_long("file", limit)
        parts.append(piece)
    try:
        return b"".join(parts).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            "the file must be text in the given encoding",
            got=f"{error.reason} at byte {error.start}",
            remedy="Set the encoding.",
        ) from None
