"""Is this a whole GGUF file? Asked before llama.cpp sees it, because it aborts the process on some
damaged files instead of saying so."""

from __future__ import annotations

from pathlib import Path

from suffixsvc.errors import ModelCorruptError
from suffixsvc_driver.targets.gguf_header import GgufHeader, read_gguf_header

__all__ = ["check_gguf"]


def check_gguf(path: str | Path) -> GgufHeader:
    """The header, if a whole GGUF file is there: where the last tensor ends is compared with the file's size.

    Raises:
        ModelNotFoundError, ModelCorruptError: see ``read_gguf_header``; a truncated file.
    """
    path = Path(path)
    header, size = read_gguf_header(path), path.stat().st_size
    if size < header.needed_bytes:
        raise ModelCorruptError(
            f"{path.name} is truncated",
            expected=f"{header.needed_bytes} bytes",
            got=f"{size} bytes",
            remedy="Fetch the file again.",
        )
    return header
