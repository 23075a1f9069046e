"""Atomic creation and replacement of files: a file gets its name after all of its bytes are durable.

The bytes are written to a temporary file of the same folder, ``.NAME.TID.tmp``; TID is the id of the writing
thread (of a main thread: the process id). A killed process leaves it. The next write by a thread of the same
id (usual in containers) replaces it; :func:`remove_stale_temporaries` removes those whose id no thread has.
"""

from __future__ import annotations

import errno
import glob
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

#: errors of folders that cannot be synced: the file system does not support it, the folder is not readable
_NO_SYNC: Final = (errno.EINVAL, errno.EACCES)
_TEMPORARY: Final = ".tmp"


@contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces ``path`` durably at the end of the block.

    Readers see the old bytes or all of the new ones. If the block raises, the old file stays and the new one
    is removed. The new file has the permissions ``mode`` without those of the umask.

    Raises:
        OSError: the disk is full, or the folder does not exist or is not writable.
    """
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}{_TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder_if_possible(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace a file by one with this text, in UTF-8. Arguments and OSError as of :func:`atomic_file`."""
    with atomic_file(path, mode) as file:
        file.write(text.encode())


def remove_stale_temporaries(path: Path) -> None:
    """Remove the temporary files of a path that killed processes left."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        thread = temporary.name.removesuffix(_TEMPORARY).rpartition(".")[2]
        if thread.isdecimal() and not _is_running(int(thread)):
            temporary.unlink(missing_ok=True)


def _is_running(thread: int) -> bool:
    try:
        os.kill(thread, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def sync_folder(folder: Path | str) -> None:
    """Make created and renamed entries of a folder durable. OSError: not supported, or it failed."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder_if_possible(folder: Path) -> None:
    """Make created and renamed entries of a folder durable, where the file system supports it.

    Raises:
        OSError: the file system failed.
    """
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
