"""The data folder: its creation, and the lock that restricts it to one process.

DIR/
  owner.lock     flock'ed by the process that has the folder open; holds its pid
  data.mdb       LMDB's data file: everything
  lock.mdb       LMDB's reader table; unused between runs
  meta.journal   before-image of the meta page that a commit overwrites (meta_journal.py)
  .creating/     an unfinished data file; removed at the next open
  backup-schema-N/  the data file before the migration from schema N (lmdb_log/migration.py)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from pathlib import Path
from typing import Final

from suffixsvc.errors import (
    InvalidConfigError,
    StoreError,
    StoreForeignError,
    StoreFullError,
    StoreLockedError,
)
from suffixsvc.runtime.atomic_file import sync_folder

DATA_FILE: Final = "data.mdb"
#: folder of segment files
SEGMENTS: Final = "segments"
LOCK_FILE: Final = "owner.lock"

#: error numbers of a full disk, an exhausted quota and the file size limit
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: error numbers of a process, and of a system, without descriptors
NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})
#: an I/O error of a write with less than this free on the disk counts as a full disk
_FULL_DISK_BYTES: Final = 1 << 20


def backup_folder(folder: str, schema: int | str) -> str:
    """Return the path of the backup that the migration of a folder from ``schema`` writes."""
    return os.path.join(folder, f"backup-schema-{schema}")


def is_full(path: str) -> bool:
    """Whether the disk of a path has next to no room."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < _FULL_DISK_BYTES


def disk_error(error: OSError, path: str, doing: str) -> StoreError:
    """Return the typed error for an OSError that was raised while ``doing`` something to ``path``, if any."""
    what = f"{doing} {path}".rstrip()
    if error.errno in FULL_ERRNOS:
        return StoreFullError(
            f"the disk is full while {what}",
            got=error.strerror,
            remedy="Free disk space or raise the limit, then try again; nothing was stored.",
        )
    if error.errno in NO_DESCRIPTOR_ERRNOS:
        return StoreError(
            f"no descriptor is left for {what}",
            expected="a limit of open files above the number in use",
            got=error.strerror,
            remedy="Raise the limit (LimitNOFILE= of a systemd unit, ulimit -n) or close connections, then "
            "try again; nothing was stored.",
        )
    return StoreError(
        f"the file system refused {what}",
        got=error.strerror,
        remedy="The data folder must be a writable directory of the user who runs this.",
    )


def prepare_folder(path: str) -> None:
    """Create the folder and its parents where they are missing, durably.

    Raises:
        StoreForeignError: the path is a file.
        StoreFullError, StoreError: the folder cannot be created.
    """
    if os.path.lexists(path) and not os.path.isdir(path):
        raise StoreForeignError(
            f"{path} is not a folder",
            expected="a directory, or a path where one can be made",
            got="a file",
            remedy="Name another path, or move the file away.",
        )
    missing = []
    probe = path
    while not os.path.isdir(probe):
        missing.append(probe)
        probe = os.path.dirname(probe)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        for made in reversed(missing):
            sync_folder(os.path.dirname(made))
    except OSError as e:
        raise disk_error(e, path, "creating the data folder") from e


def require_data_folder(path: Path) -> None:
    """Raise InvalidConfigError unless a folder has a data file, so that none is created by mistake."""
    if not (path / DATA_FILE).is_file():
        raise InvalidConfigError(f"--data must be a folder with a {DATA_FILE}", got=str(path))


class FolderLock:
    """An exclusive lock on a data folder. The kernel releases it when the process ends.

    Raises:
        StoreLockedError: the folder is open already, here or in another process.
        StoreError: the lock file cannot be written (read-only folder).
    """

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, LOCK_FILE)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise disk_error(e, path, "opening") from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise disk_error(e, path, "locking") from e
            who = "this process" if owner == str(os.getpid()) else f"process {owner or 'unknown'}"
            raise StoreLockedError(
                f"data folder {folder} is in use",
                expected="one process at a time",
                got=f"{who} has it open",
                remedy="Stop that process, or name another data folder.",
            ) from None
        self._fd = fd
        with contextlib.suppress(OSError):  # an existing store opens on a full disk
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        _HELD.add(self)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _HELD.discard(self)
            os.close(fd)


#: locks of this process; a forked child closes its copies, which would keep the folder locked
_HELD: Final[weakref.WeakSet[FolderLock]] = weakref.WeakSet()


def _drop_in_child() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_drop_in_child)
