"""Is this a whole GGUF file? Asked before llama.cpp sees it, because it aborts the process on some
damaged files instead of saying so."""

from __future__ import annotations

from pathlib import Path

from suffixsvc.errors import ModelCorruptError
from suffixsvc_driver.targets.gguf_header import read_gguf_header

__all__ = ["check_gguf"]


def check_gguf(path: str | Path) -> Path:
    """The path, if a whole GGUF file is there: the header is read, and where the last tensor ends is compared
    with the file's size.

    Raises:
        ModelNotFoundError, ModelCorruptError: see ``read_gguf_header``; a truncated file.
    """
    path = Path(path)
    needed, size = read_gguf_header(path).needed_bytes, path.stat().st_size
    if size < needed:
        raise ModelCorruptError(
            f"{path.name} is truncated",
            expected=f"{needed} bytes",
            got=f"{size} bytes",
            remedy="Fetch the file again.",
        )
    return path
