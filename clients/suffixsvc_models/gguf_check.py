"""Check that a GGUF file is complete, before llama.cpp opens it: it aborts the process on some damaged
files."""

from __future__ import annotations

from pathlib import Path

from suffixsvc.errors import ModelCorruptError
from suffixsvc_models.gguf_header import GgufHeader, read_gguf_header

__all__ = ["check_gguf"]


def check_gguf(path: str | Path) -> GgufHeader:
    """Read the header of a GGUF file and compare the end of its last tensor with the file's size.

    Raises:
        ModelNotFoundError: no such file.
        ModelCorruptError: a damaged header (see ``read_gguf_header``), or a truncated file.
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
