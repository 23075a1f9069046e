"""Copying and hashing of large files in blocks, with progress reports."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from suffixsvc.errors import ModelCorruptError, ModelError

BLOCK: Final = 1 << 20
GGUF_MAGIC: Final = b"GGUF"
_NO_JSON: Final = (
    "Give the model's GGUF: a tokenizer.json does not say which tokens begin and end a text, nor what the "
    "model costs."
)


def copy_hashed(
    source: IO[bytes],
    target: IO[bytes] | None,
    limit: int,
    on_bytes: Callable[[int], None] = lambda done: None,
) -> tuple[int, str]:
    """Copy at most ``limit`` + 1 bytes (the extra one detects a file that is too long); None only hashes.

    Returns:
        Number of bytes copied, and their sha256.
    """
    digest, copied = hashlib.sha256(), 0
    while copied <= limit and (block := source.read(min(BLOCK, limit + 1 - copied))):
        if target is not None:
            target.write(block)
        digest.update(block)
        copied += len(block)
        on_bytes(copied)
    return copied, digest.hexdigest()


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as stream:
        return copy_hashed(stream, None, path.stat().st_size, on_bytes)[1]


def require_space(folder: Path, needed: int) -> None:
    """Check that ``needed`` bytes are free on the disk of ``folder``.

    Raises:
        ModelError: they are not.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"not enough space in {folder}",
            expected=f"{needed / 1e6:.0f} MB free",
            got=f"{free / 1e6:.0f} MB",
            remedy="Free some space, or choose another folder with --dir or SUFFIXSVC_HOME.",
        )


def require_gguf(path: Path) -> None:
    """Check that a file begins with the GGUF magic.

    Raises:
        ModelCorruptError: it does not.
        ModelError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelError(f"{path} cannot be read", expected="a GGUF file", got=error.strerror) from error
    if start != GGUF_MAGIC:
        raise ModelCorruptError(
            f"{path} is not a GGUF file",
            expected=f"a file that begins with {GGUF_MAGIC!r}",
            got=repr(start) if start else "an empty file",
            remedy=_NO_JSON if start.startswith(b"{") else "Fetch the file again.",
        )
