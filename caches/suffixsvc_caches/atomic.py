"""Files whose name appears when all of them is on the disk."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError
from suffixsvc.store import folder as store_folder

__all__ = [
    "FULL",
    "make_folder",
    "new_file",
    "remove_leftovers",
    "require_new",
    "require_place",
    "sync_folder",
]

#: errors of the system that mean: no room
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: what is said of folders that cannot be synced: file systems that do not do it, folders that may not be read
_NO_SYNC: Final = (errno.EINVAL, errno.EACCES)
_TEMPORARY: Final = ".tmp"


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has, where the system can: a name is not before that. OSError."""
    try:
        store_folder.sync_folder(str(folder))
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where there are none, durably. OSError."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def require_place(path: Path) -> None:
    """Refuse a path that no file can have, or that something else than a file has. InvalidInputError."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        # A device or a pipe would be replaced by a file.
        raise InvalidInputError(f"{path} is no ordinary file", expected="the name of a file")
    if path.is_dir() or not path.parent.is_dir():
        what = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InvalidInputError(what, expected="the name of a file, in a folder that exists")


def require_new(path: Path, *, force: bool) -> None:
    """Refuse a path that no file can have, or that exists, unless ``force``. InvalidInputError."""
    require_place(path)
    if os.path.lexists(path) and not force:  # also a link that leads nowhere
        raise InvalidInputError(f"{path} exists", remedy="Give another name, or --force.")


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """A file to write; it gets its name, durably, when the block ends well, and is gone when it does not.

    Raises:
        InvalidInputError: the path exists, and not ``force``.
        StoreFullError, StoreError: the disk; nothing is left behind.
    """
    require_new(path, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        # One that is there is of a process that had this number before, and was killed.
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        kind = StoreFullError if error.errno in FULL else StoreError
        raise kind(f"cannot write {path}", got=error.strerror) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed left of a file that they were writing."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        number = left.name.removesuffix(_TEMPORARY).rpartition(".")[2]
        if number.isdecimal() and not _lives(int(number)):
            left.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
