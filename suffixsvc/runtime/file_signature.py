"""What tells that a file was changed or replaced, without reading it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

#: device, inode, time of change and size
Signature: TypeAlias = tuple[int, int, int, int]


def file_signature(path: Path | None) -> Signature | None:
    """The signature of a file; None: there is none, or it cannot be looked at."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
