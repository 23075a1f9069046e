"""Atomic file creation: a file gets its name after all of its bytes are durable."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError
from suffixsvc.store.files import folder as store_folder
from suffixsvc.store.files.folder import FULL_ERRNOS

#: errors of folders that cannot be synced: the file system does not support it, the folder is not readable
_NO_SYNC: Final = (errno.EINVAL, errno.EACCES)
_TEMPORARY: Final = ".tmp"


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, where the file system supports it.

    Raises:
        OSError: the file system failed.
    """
    try:
        store_folder.sync_folder(str(folder))
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably.

    Raises:
        OSError: a folder cannot be created.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def require_file_path(path: Path) -> None:
    """Check that a path is a regular file, or can become one.

    Raises:
        InvalidInputError: it is a folder, a device or a pipe, or its folder does not exist.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        # A device or a pipe would be replaced by a file.
        raise InvalidInputError(f"{path} must be a regular file", got="a device or a pipe")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInputError(
            f"{path} must be the name of a file in a folder that exists",
            got="a folder" if path.is_dir() else f"no folder {path.parent}",
        )


def require_new(path: Path, *, force: bool) -> None:
    """Check that a path can become a file, and that it does not exist unless ``force``.

    Raises:
        InvalidInputError: it exists, or as :func:`require_file_path`.
    """
    require_file_path(path)
    if os.path.lexists(path) and not force:  # a dangling link exists, too
        raise InvalidInputError(f"{path} exists", remedy="Give another name, or --force.")


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name durably at the end of the block.

    If the block raises, the file is removed.

    Raises:
        InvalidInputError: the path exists, and not ``force``.
        StoreFullError, StoreError: the file cannot be written; no partial file is left.
    """
    require_new(path, force=force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    try:
        # An existing one belongs to a killed process that had the same pid.
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise write_error(error, f"cannot write {path}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_error(error: OSError, message: str, remedy: str | None = None) -> StoreError:
    """Return the typed error for a write that failed: StoreFullError if the disk or a quota is full."""
    kind = StoreFullError if error.errno in FULL_ERRNOS else StoreError
    return kind(message, got=error.strerror, remedy=remedy)


def remove_stale_temporaries(path: Path) -> None:
    """Remove the temporary files of a path that killed processes left."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        pid = temporary.name.removesuffix(_TEMPORARY).rpartition(".")[2]
        if pid.isdecimal() and not _is_running(int(pid)):
            temporary.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
