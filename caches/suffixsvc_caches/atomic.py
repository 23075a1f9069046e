"""Files whose name appears when all of them is on the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError

__all__ = ["FULL", "new_file", "require_new"]

#: errors of the system that mean: no room
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_new(path: Path, *, force: bool) -> None:
    """Refuse a path that exists, unless ``force``. InvalidInputError."""
    if path.exists() and not force:
        raise InvalidInputError(f"{path} exists", remedy="Give another name, or --force.")


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A file to write; it gets its name when the block ends well, and is gone when it does not.

    Raises:
        InvalidInputError: the path exists, and not ``force``.
        StoreFullError, StoreError: the disk; nothing is left behind.
    """
    require_new(path, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        kind = StoreFullError if error.errno in FULL else StoreError
        raise kind(f"cannot write {path}", got=error.strerror) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
