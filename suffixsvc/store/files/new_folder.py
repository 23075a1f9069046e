"""Folders that appear with all of their files, or not at all.

A folder is built as ``.NAME.partial`` beside its later place, and renamed when all of it is durable. A killed
process leaves the partial folder, as does one without a descriptor to list it; the next attempt empties it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from suffixsvc.errors import InvalidInputError, StoreError, StoreLockedError
from suffixsvc.runtime.atomic_file import sync_folder
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.files.folder import LOCK_FILE, FolderLock, disk_error

log = structlog.get_logger(__name__)


@contextmanager
def new_folder(path: Path, name: str, sync_point: SyncPoint) -> Iterator[Path]:
    """Yield a partial folder, which becomes ``path`` at the end of the block, durably.

    The block syncs the files that it writes. If it raises, nothing remains, or a warning is logged. The
    folder has ``owner.lock``, which is held until then: one process at a time builds it, and none opens it
    before.

    Args:
        path: does not exist, or is an empty folder; its parent exists.
        name: of the argument, for errors.
        sync_point: called as "folder-built" and "folder-renamed".

    Raises:
        InvalidInputError: ``path`` has content, or no parent; or the partial folder is not this user's.
        StoreLockedError: another process builds it.
        StoreFullError, StoreError: it cannot be written.
    """
    path = path.absolute()
    require_vacant(path, name)
    partial = path.with_name(f".{path.name}.partial")
    _make_own(partial)
    try:
        lock = FolderLock(str(partial))
    except StoreLockedError:
        raise
    except StoreError:
        with suppress(OSError):  # it has content: of a killed process
            partial.rmdir()
        raise
    try:
        _empty(partial)
        yield partial
        for folder, _, _ in os.walk(partial, onerror=_raise):
            sync_folder(folder)
        sync_point("folder-built")
        require_vacant(path, name)
        partial.rename(path)  # replaces an empty folder
        sync_point("folder-renamed")
        sync_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if partial.exists():
            log.warning("an unfinished folder remains; the next attempt empties it", folder=str(partial))
        if isinstance(error, OSError):
            raise disk_error(error, str(path), "writing") from error
        raise
    finally:
        lock.release()


def _raise(error: OSError) -> None:
    raise error


def require_vacant(path: Path, name: str) -> None:
    """Raise InvalidInputError unless a path is free, or an empty folder, in an existing folder."""
    try:
        content = next(iter(sorted(os.listdir(path))), None)
    except FileNotFoundError:
        content = None
    except NotADirectoryError:
        content = "a file"
    except OSError as error:
        raise disk_error(error, str(path), "reading") from error
    if content is not None:
        raise InvalidInputError(
            f"{name} must be a new or an empty folder",
            got=f"{path} with {content}",
            remedy="Name another folder, or move this one away; it is left unchanged.",
        )
    if not path.parent.is_dir():
        raise InvalidInputError(
            f"{name} must be in an existing folder", got=str(path), remedy=f"Create {path.parent} first."
        )


def _make_own(partial: Path) -> None:
    """Create the partial folder, or take the one that a killed process of this user left.

    Raises:
        InvalidInputError: it is a link or a file, which may lead elsewhere, or another user's, who could read
            and replace what is written to it.
        StoreFullError, StoreError: it cannot be created.
    """
    try:
        with suppress(FileExistsError):
            partial.mkdir(mode=0o700)
        found = partial.lstat()
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if own:
            partial.chmod(0o700)
    except OSError as error:
        raise disk_error(error, str(partial), "creating") from error
    if not own:
        raise InvalidInputError(
            f"{partial} must be a folder of this user",
            got=f"{stat.filemode(found.st_mode)} of user id {found.st_uid}",
            remedy="Remove it, or choose a folder whose parent only this user can write to.",
        )


def _empty(folder: Path) -> None:
    """Remove what a killed process left."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != LOCK_FILE:
            each.unlink()
