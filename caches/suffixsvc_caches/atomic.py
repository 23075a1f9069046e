"""Atomic creation of the files of a build, after a check of their paths; errors are typed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from suffixsvc.errors import InvalidInputError, StoreError, StoreFullError
from suffixsvc.runtime.atomic_file import atomic_file, sync_folder_if_possible
from suffixsvc.store.files.folder import FULL_ERRNOS


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably.

    Raises:
        OSError: a folder cannot be created.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder_if_possible(folder.parent)


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
    try:
        with atomic_file(path) as file:
            yield file
    except OSError as error:
        raise write_error(error, f"cannot write {path}") from None


def write_error(error: OSError, message: str, remedy: str | None = None) -> StoreError:
    """Return the typed error for a write that failed: StoreFullError if the disk or a quota is full."""
    kind = StoreFullError if error.errno in FULL_ERRNOS else StoreError
    return kind(message, got=error.strerror, remedy=remedy)
