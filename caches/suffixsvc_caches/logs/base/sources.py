"""Streaming source of a file's bytes: decompressed, converted to UTF-8, in pieces of bounded size.

    file -> gzip | zstd | plain -> UTF-16 and others to UTF-8 -> pieces of at most about 16 MiB

Memory use is one piece, so a decompression bomb costs time but no memory. A damaged stream yields everything
before the damage, then raises.
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

#: bytes read at a time
_PIECE: Final = 1 << 18
#: Compressed bytes passed to zstd at a time. Four bytes can encode a block of 128 KiB, so this limits its
#: output to 16 MiB; for ordinary texts it is 2 to 5 KiB.
_ZSTD_FEED: Final = 1 << 9
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC_BYTES: Final = 4
#: byte order marks, longer ones first, because UTF-32's begins with UTF-16's
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class DamagedFile(Exception):
    """A file is truncated, corrupt, or of another format."""


#: exceptions of reading a file
READ_ERRORS: Final = (OSError, EOFError, zlib.error, DamagedFile)


def compression(path: Path) -> str:
    """Detect the compression of a file by its first bytes: "gzip", "zstd" or "". OSError: not readable."""
    with path.open("rb") as raw:
        return _compression(raw.read(_MAGIC_BYTES))


def _compression(head: bytes) -> str:
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


def can_decode(encoding: str) -> bool:
    """Whether Python has a text encoding that can report invalid bytes to an error handler."""
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
    """Yield the text of a file as UTF-8, without a byte order mark, in pieces that are not empty.

    Bytes that are invalid in ``encoding`` become invalid UTF-8, so that only the line that has them fails.

    Args:
        path: the file.
        encoding: its encoding, unless it has a byte order mark.
        on_bytes: progress callback: bytes of the file consumed.

    Raises:
        READ_ERRORS: the file cannot be read to its end.
        MissingExtraError: it is zstd, and the library is not installed.
    """
    notify = on_bytes or (lambda _consumed: None)
    with path.open("rb") as raw:
        pieces = _decompressed(raw)
        first = next(pieces, b"")
        mark, encoding = next(
            ((mark, name) for mark, name in _MARKS if first.startswith(mark)), (b"", encoding)
        )
        to_utf8 = _to_utf8(encoding)
        for piece in chain([first[len(mark) :]], pieces):
            notify(raw.tell())
            if text := to_utf8(piece, False):
                yield text
        notify(raw.tell())
        if text := to_utf8(b"", True):
            yield text


def _decompressed(raw: IO[bytes]) -> Iterator[bytes]:
    kind = _compression(raw.read(_MAGIC_BYTES))
    raw.seek(0)
    if kind == "zstd":
        yield from _unzstd(raw)
        return
    stream: Any = gzip.GzipFile(fileobj=raw) if kind == "gzip" else raw
    # read1() returns the bytes before a fault before it raises
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
        raise DamagedFile(str(error)) from None
    if begun:
        raise DamagedFile("the zstd stream ends early")


def _to_utf8(encoding: str) -> Callable[[bytes, bool], bytes]:
    name = codecs.lookup(encoding).name
    if name in ("utf-8", "ascii"):
        return lambda piece, _final: piece
    decoder = codecs.getincrementaldecoder(encoding)(_KEEP_INVALID)

    def to_utf8(piece: bytes, final: bool) -> bytes:
        try:
            text = decoder.decode(piece, final)
        except UnicodeError as error:  # no byte order mark; not passed to the error handler
            raise DamagedFile(f"{error}; use {name}-le or {name}-be") from None
        return text.encode("utf-8", "surrogatepass")

    return to_utf8


def _keep_invalid(error: UnicodeError) -> tuple[str, int]:
    """Error handler: replaces invalid bytes by a lone surrogate, which encodes to invalid UTF-8."""
    if isinstance(error, UnicodeDecodeError):
        return "\udcff", error.end
    raise error


_KEEP_INVALID: Final = "suffixsvc.keep-invalid"
codecs.register_error(_KEEP_INVALID, _keep_invalid)
