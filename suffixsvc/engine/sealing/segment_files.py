"""Folder of segment files: names of new files, and removal of unreferenced ones.

DIR/segments/
  0c19..e5-1-2048-0.seg                       xxh3 of the namespace's path, first and last LSN, a number
  0c19..e5-1-2048-0.seg.4711-3.segment-tmp    incomplete file
  anything else                               foreign file or other version: not touched, and logged
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Final

import structlog
import xxhash

from suffixsvc.core.segments import SEGMENT_HEAD, TEMPORARY_SUFFIX
from suffixsvc.errors import StoreError
from suffixsvc.store.files.folder import prepare_folder
from suffixsvc.types import OutputId

log = structlog.get_logger(__name__)

_NAME: Final = re.compile(r"[0-9a-f]{16}-[0-9]+-[0-9]+-[0-9]+\.seg")
_TEMPORARY: Final = re.compile(_NAME.pattern + r"\.[0-9]+-[0-9]+" + re.escape(TEMPORARY_SUFFIX))


def new_path(folder: Path, namespace: str, first: OutputId, last: OutputId) -> Path:
    """An unused path for a segment of a namespace and range; the folder is created if missing."""
    prepare_folder(str(folder))
    digest = xxhash.xxh3_64_hexdigest(namespace.encode("utf-8", "surrogatepass"))
    paths = (folder / f"{digest}-{first}-{last}-{n}.seg" for n in count())
    return next(path for path in paths if not os.path.lexists(path))


def remove(path: Path) -> None:
    """Delete a file that is in no manifest. A failure is logged, and retried at the next open."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a segment file could not be removed", file=str(path), error=str(error))


def sweep(folder: Path, keep: Collection[str]) -> None:
    """Remove segment files that are in no manifest, as after a crash.

    Args:
        folder: the folder of segments, which need not exist.
        keep: names of the files in manifests.

    Raises:
        StoreError: the folder cannot be read.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"the folder of segments {folder} must be readable",
            got=str(error),
            remedy="Make it a directory that this user may read and write.",
        ) from error
    for entry in entries:
        if entry.name in keep:
            continue
        if _is_ours(entry):
            remove(Path(entry.path))
        else:
            log.warning("a foreign file in the folder of segments is left as it is", file=entry.path)


def remove_all_but(folder: Path, keep: Collection[str]) -> None:
    """Remove the segment files that are in no manifest, of any version; foreign files stay.

    Args:
        folder: the folder of segments, which need not exist.
        keep: names of the files in manifests.

    Raises:
        StoreError: a file cannot be removed.
    """
    try:
        for entry in list(os.scandir(folder)):
            named = _NAME.fullmatch(entry.name) or _TEMPORARY.fullmatch(entry.name)
            if named and entry.name not in keep and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"segment files of {folder} must be removable",
            got=str(error),
            remedy="Make it a directory that this user may read and write.",
        ) from error


def _is_ours(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return False
    if _TEMPORARY.fullmatch(entry.name):  # the header is written last
        return True
    if not _NAME.fullmatch(entry.name):
        return False
    head = b""
    with contextlib.suppress(OSError), open(entry.path, "rb") as file:
        head = file.read(len(SEGMENT_HEAD))
    return head == SEGMENT_HEAD
