"""Reader of the header of a GGUF file: metadata and tensor sizes, without tensors and without llama.cpp.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import ModelCorruptError, ModelNotFoundError
from suffixsvc_models.files import require_gguf

#: metadata value type -> its struct code (GGUF specification); 8 is a string, 9 an array
_SCALARS: Final = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_U32, _U64, _STRING, _ARRAY = 4, 10, 8, 9
#: ggml tensor type -> (elements in a block, bytes of a block)
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
_REMEDY: Final = "Fetch the file again."
#: longer texts are skipped, but for chat templates
_MAX_TEXT: Final = 4096
#: chat templates: the default one; those with a name have it after a dot
CHAT_TEMPLATE: Final = "tokenizer.chat_template"
#: the longest known one has 30 KB
_MAX_TEMPLATE: Final = 1 << 20

Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Contents of a header.

    Attributes:
        values: scalars, short texts and chat templates, by key.
        arrays: length of each array, by key.
        weights: number of elements of all tensors.
        needed_bytes: size of a complete file.
    """

    values: Mapping[str, Value]
    arrays: Mapping[str, int]
    weights: int
    needed_bytes: int

    @property
    def architecture(self) -> str:
        """The architecture: "llama", "qwen2", ...; "" if it is missing."""
        return str(self.values.get("general.architecture", ""))

    @property
    def name(self) -> str:
        """The model's name; "" if it is missing."""
        return str(self.values.get("general.name", ""))


class _Cursor:
    """A read position in the mapped file. Reads beyond its end raise struct.error or EOFError; unknown value
    types raise KeyError.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def skip(self, count: int) -> None:
        """Skip bytes."""
        if self.at + count > len(self.data):
            raise EOFError
        self.at += count

    def scalar(self, kind: int) -> Any:
        """Read a scalar of a metadata value type."""
        code = _SCALARS[kind]
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> bytes:
        """Read a length-prefixed string."""
        size = self.scalar(_U64)
        self.skip(size)
        return self.data[self.at - size : self.at]

    def skip_array(self) -> int:
        """Skip an array; return its length."""
        item, count = self.scalar(_U32), self.scalar(_U64)
        if item == _STRING:
            self._skip_strings(count)
        elif item == _ARRAY:
            for _ in range(count):
                self.skip_array()
        else:
            self.skip(count * struct.calcsize(_SCALARS[item]))
        return int(count)

    def _skip_strings(self, count: int) -> None:
        """Skip strings in a tight loop: vocabularies and merges have several 100,000."""
        data, at, size_at = self.data, self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + size_at(data, at)[0]
        self.at = at
        self.skip(0)


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a header.

    Raises:
        ModelNotFoundError: no such file.
        ModelCorruptError: no GGUF magic, an unknown version, a damaged header, or one that ends too early.
    """
    if not path.is_file():
        raise ModelNotFoundError(
            f"no model file at {path}", remedy="Give the path of a GGUF file, or run: suffixsvc models list"
        )
    require_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _read(_Cursor(data), path.name)
        except KeyError as error:
            raise ModelCorruptError(
                f"the header of {path.name} is damaged",
                expected="a known value type",
                got=error.args[0],
                remedy=_REMEDY,
            ) from None
        except (EOFError, OverflowError, struct.error, RecursionError):
            raise ModelCorruptError(
                f"{path.name} ends inside its header", got=f"{len(data)} bytes", remedy=_REMEDY
            ) from None


def check_gguf(path: str | Path) -> GgufHeader:
    """Read a header and compare the end of the last tensor with the file's size: llama.cpp aborts the process
    on some damaged files.

    Raises:
        ModelNotFoundError: no such file.
        ModelCorruptError: a damaged header, or a truncated file.
    """
    path = Path(path)
    header, size = read_gguf_header(path), path.stat().st_size
    if size < header.needed_bytes:
        raise ModelCorruptError(
            f"{path.name} is truncated",
            expected=f"{header.needed_bytes} bytes",
            got=f"{size} bytes",
            remedy=_REMEDY,
        )
    return header


def _read(cursor: _Cursor, name: str) -> GgufHeader:
    cursor.skip(4)
    version = cursor.scalar(_U32)
    if version not in (2, 3):
        raise ModelCorruptError(f"{name} has an unknown GGUF version", expected="2 or 3", got=version)
    tensors, count = cursor.scalar(_U64), cursor.scalar(_U64)
    values: dict[str, Value] = {}
    arrays: dict[str, int] = {}
    for _ in range(count):
        key, kind = cursor.string().decode("utf-8", "replace"), cursor.scalar(_U32)
        if kind == _ARRAY:
            arrays[key] = cursor.skip_array()
        elif kind == _STRING:
            text = cursor.string()
            if len(text) <= (_MAX_TEMPLATE if key.startswith(CHAT_TEMPLATE) else _MAX_TEXT):
                values[key] = text.decode("utf-8", "replace")
        else:
            values[key] = cursor.scalar(kind)
    weights = end = 0
    for _ in range(tensors):
        cursor.string()
        elements = math.prod(cursor.scalar(_U64) for _ in range(cursor.scalar(_U32)))
        block, bytes_per_block = _BLOCKS.get(cursor.scalar(_U32), (1, 0))
        end = max(end, cursor.scalar(_U64) + elements // block * bytes_per_block)
        weights += elements
    value = values.get("general.alignment")
    alignment = value if isinstance(value, int) and value > 0 else 32
    # A vocabulary without weights: the file ends with the header, without padding.
    needed = -(-cursor.at // alignment) * alignment + end if end else cursor.at
    return GgufHeader(values, arrays, weights, needed)
