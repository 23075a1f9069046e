"""The bytes of a file, decompressed and in UTF-8, a bounded piece at a time.

    file -> gzip | zstd | as it is -> UTF-16 and others to UTF-8 -> pieces of at most about 16 MiB

Nothing here ever holds more than a piece, so a gzip bomb costs time and no memory. A damaged stream first
hands out everything before the damage, then raises.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final

from suffixsvc.errors import MissingExtraError

__all__ = ["DAMAGE", "Damaged", "can_decode", "open_pieces", "packing"]

#: bytes asked for at a time
_PIECE: Final = 1 << 18
#: Compressed bytes given to zstd at a time. Four bytes can stand for a block of 128 KiB, so this bounds what
#: comes back to 16 MiB; of ordinary texts it is 2 to 5 KiB.
_ZSTD_FEED: Final = 1 << 9
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC_BYTES: Final = 4
#: byte order marks; the longer ones first, as UTF-32's begins with UTF-16's
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Damaged(Exception):
    """A file is truncated or corrupt, or not what it is read as."""


#: what reading a file may raise
DAMAGE: Final = (OSError, EOFError, zlib.error, Damaged)


def packing(path: Path) -> str:
    """ "gzip", "zstd" or "", by the first bytes of a file. OSError."""
    with path.open("rb") as raw:
        return _packing(raw.read(_MAGIC_BYTES))


def _packing(head: bytes) -> str:
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


def can_decode(encoding: str) -> bool:
    """Whether Python knows an encoding of text, in which bytes that are no text can be told from others."""
    try:
        if not getattr(codecs.lookup(encoding), "_is_text_encoding", True):
            return False
        codecs.getincrementaldecoder(encoding)(_KEEP_INVALID).decode(b"", True)
    except (LookupError, ValueError):
        return False
    return True


def open_pieces(
    path: Path, encoding: str = "utf-8", on_bytes: Callable[[int], None] | None = None
) -> Iterator[bytes]:
    """A file's text as UTF-8, without a byte order mark, in pieces that are never empty.

    What is no text in ``encoding`` becomes bytes that are no UTF-8, so that the line it stands in fails and
    no other one.

    Args:
        on_bytes: told with each piece how many bytes of the file are consumed.

    Raises:
        DAMAGE: the file cannot be read, or not to its end.
        MissingExtraError: it is zstd, and the library is not installed.
    """
    tell = on_bytes or (lambda _consumed: None)
    with path.open("rb") as raw:
        pieces = _decompressed(raw)
        first = next(pieces, b"")
        mark, encoding = next(
            ((mark, name) for mark, name in _MARKS if first.startswith(mark)), (b"", encoding)
        )
        to_utf8 = _to_utf8(encoding)
        for piece in chain([first[len(mark) :]], pieces):
            tell(raw.tell())
            if text := to_utf8(piece, False):
                yield text
        tell(raw.tell())
        if text := to_utf8(b"", True):
            yield text


def _decompressed(raw: IO[bytes]) -> Iterator[bytes]:
    kind = _packing(raw.read(_MAGIC_BYTES))
    raw.seek(0)
    if kind == "zstd":
        yield from _unzstd(raw)
        return
    stream: Any = gzip.GzipFile(fileobj=raw) if kind == "gzip" else raw
    # read1: what was decompressed before a fault comes back before the fault is raised
    while piece := stream.read1(_PIECE):
        yield piece


def _unzstd(raw: IO[bytes]) -> Iterator[bytes]:
    try:
        import zstandard  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise MissingExtraError("caches", "zstandard") from None
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    begun = False
    try:
        while data := raw.read(_ZSTD_FEED):
            while data:
                begun = True
                if piece := frame.decompress(data):
                    yield piece
                data = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame, begun = decompressor.decompressobj(), False
    except zstandard.ZstdError as error:
        raise Damaged(str(error)) from None
    if begun:
        raise Damaged("the zstd stream ends early")


def _to_utf8(encoding: str) -> Callable[[bytes, bool], bytes]:
    name = codecs.lookup(encoding).name
    if name in ("utf-8", "ascii"):
        return lambda piece, _final: piece
    decoder = codecs.getincrementaldecoder(encoding)(_KEEP_INVALID)

    def to_utf8(piece: bytes, final: bool) -> bytes:
        try:
            text = decoder.decode(piece, final)
        except UnicodeError as error:  # no byte order mark: the error handler is not asked
            raise Damaged(f"{error}; name the byte order: {name}-le or {name}-be") from None
        return text.encode("utf-8", "surrogatepass")

    return to_utf8


def _keep_invalid(error: UnicodeError) -> tuple[str, int]:
    """Error handler: a lone surrogate, which encodes to bytes that are no UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.end
    raise error


_KEEP_INVALID: Final = "suffixsvc.keep-invalid"
codecs.register_error(_KEEP_INVALID, _keep_invalid)
