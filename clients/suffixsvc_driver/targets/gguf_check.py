"""Is this a whole GGUF file? Asked before llama.cpp sees it, because it aborts the process on some
damaged files instead of saying so.

Reads the header (magic, version, metadata, tensor table) and compares where the last tensor ends with the
file's size. Nothing of the tensors is read.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from suffixsvc.errors import ModelCorruptError, ModelNotFoundError

__all__ = ["check_gguf"]

#: metadata value type -> bytes of a scalar (GGUF specification); 8 is a string, 9 an array
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
#: ggml tensor type -> (elements in a block, bytes of a block)
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
_U64: Final = struct.Struct("<Q")
_REMEDY: Final = "Fetch the file again."


class _EndOfFileError(Exception):
    """The header goes on behind the end of the file."""


class _Header:
    """A cursor over the mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self._data):
            raise _EndOfFileError
        piece = self._data[self.at : end]
        self.at = end
        return piece

    def skip(self, count: int) -> None:
        if count < 0 or self.at + count > len(self._data):
            raise _EndOfFileError
        self.at += count

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self) -> bytes:
        return self.take(self.u64())

    def _skip_strings(self, count: int) -> None:
        """Vocabularies and merges: several 100,000 of them."""
        data, at, end, size_at = self._data, self.at, len(self._data) - 8, _U64.unpack_from
        for _ in range(count):
            if at > end:
                raise _EndOfFileError
            at += 8 + size_at(data, at)[0]
        self.at = at
        self.skip(0)

    def skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self.skip(self.u64())
        elif kind == _ARRAY:
            item, count = self.u32(), self.u64()
            if item in _SCALAR_BYTES:
                self.skip(count * _SCALAR_BYTES[item])
            elif item == _STRING:
                self._skip_strings(count)
            else:
                for _ in range(count):
                    self.skip_value(item)
        elif kind in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[kind])
        else:
            raise ModelCorruptError("a GGUF header is damaged", expected="a known value type", got=kind)


def check_gguf(path: str | Path) -> Path:
    """The path, if a whole GGUF file is there.

    Raises:
        ModelNotFoundError: no such file.
        ModelCorruptError: no GGUF magic, an unknown version, a damaged or truncated file.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelNotFoundError(
            f"no model file at {path}", remedy="Give the path of a GGUF file, or run: suffixsvc models list"
        )
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise ModelCorruptError(
                f"{path.name} is not a GGUF file", expected=repr(b"GGUF"), got=repr(magic), remedy=_REMEDY
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                needed = _needed_bytes(_Header(data), path.name)
            except _EndOfFileError:
                raise ModelCorruptError(
                    f"{path.name} ends inside its header", got=f"{size} bytes", remedy=_REMEDY
                ) from None
    if size < needed:
        raise ModelCorruptError(
            f"{path.name} is truncated", expected=f"{needed} bytes", got=f"{size} bytes", remedy=_REMEDY
        )
    return path


def _needed_bytes(header: _Header, name: str) -> int:
    header.skip(4)
    version = header.u32()
    if version not in (2, 3):
        raise ModelCorruptError(f"{name} has an unknown GGUF version", expected="2 or 3", got=version)
    tensors, values = header.u64(), header.u64()
    alignment = 32
    for _ in range(values):
        key, kind = header.string(), header.u32()
        if key == b"general.alignment" and kind == _UINT32:
            alignment = header.u32() or 32
        else:
            header.skip_value(kind)
    end = 0
    for _ in range(tensors):
        header.string()
        elements = 1
        for _ in range(header.u32()):
            elements *= header.u64()
        block, bytes_per_block = _BLOCKS.get(header.u32(), (1, 0))
        end = max(end, header.u64() + elements // block * bytes_per_block)
    if not end:  # a vocabulary alone: nothing stands behind the header, padding neither
        return header.at
    return -(-header.at // alignment) * alignment + end
