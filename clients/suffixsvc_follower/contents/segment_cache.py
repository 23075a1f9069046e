"""Folder of fetched segment files, bounded in bytes and shared by the processes of one user.

FOLDER/
  77ab..1c-9f86..08.seg     a whole, checked segment; the name is a hash of its namespace's path and the
                            digest of its header
  77ab..1c-9f86..08.part    a file that is being fetched: locked by its writer, continued by the next one

A file gets its name after its bytes are durable and checked. When the folder is full, the files that were
used least recently are deleted. Another process may delete one that is mapped here: mapped files stay valid.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import xxhash

from suffixsvc.core.segments import Segment
from suffixsvc.errors import (
    InvalidConfigError,
    SegmentCorruptError,
    ServiceUnavailableError,
    StoreError,
    StoreFullError,
)
from suffixsvc.runtime.atomic_file import sync_folder_if_possible
from suffixsvc.store.files.folder import disk_error, prepare_folder
from suffixsvc.types import SegmentRecord

_WHOLE: Final = ".seg"
_PARTIAL: Final = ".part"
#: bytes of a segment file that its digest covers; they hold the checksums of the rest
HEADER_BYTES: Final = 512
#: the rest of a segment file from an offset on, in pieces
Fetch = Callable[[int], Iterable[bytes]]


def default_cache_folder() -> Path:
    """``$XDG_CACHE_HOME/suffixsvc/segments``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "suffixsvc" / "segments"


def has_digest(file: IO[bytes], digest: bytes) -> bool:
    """Whether the header of a segment file has this digest."""
    file.seek(0)
    return xxhash.xxh3_128_digest(file.read(HEADER_BYTES)) == digest


def stem(namespace: str, digest: bytes = b"") -> str:
    """The name of a namespace's file with a digest, or the beginning of the names of all its files."""
    return f"{xxhash.xxh3_128_hexdigest(namespace.encode())}-{digest.hex()}"


class SegmentCache:
    """The cache folder. Thread-safe; several processes use one folder.

    Args:
        folder: created with access for its owner only, where it is missing.
        limit_bytes: limit of its files.

    Raises:
        StoreForeignError, StoreError: the folder cannot be used.
        InvalidConfigError: it belongs to another user, or others can access it.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        prepare_folder(str(folder))
        found = folder.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise InvalidConfigError(
                f"the cache folder {folder} must belong to this user and be accessible to no other",
                got=f"user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}",
                remedy=f"chmod 700 {folder}, or name another folder.",
            )
        self._folder = folder
        self._limit = limit_bytes

    def find(self, namespace: str, record: SegmentRecord, digest: bytes) -> Path | None:
        """The whole file of a digest, and mark it as used; None if the cache does not have it."""
        path = self._folder / f"{stem(namespace, digest)}{_WHOLE}"
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == record.file_bytes and has_digest(file, digest):
                    os.utime(file.fileno())
                    return path
        except FileNotFoundError:
            return None
        self.remove(namespace, digest)
        return None

    def remove(self, namespace: str, digest: bytes) -> None:
        """Delete the file of a digest."""
        (self._folder / f"{stem(namespace, digest)}{_WHOLE}").unlink(missing_ok=True)

    def discard(self, namespace: str) -> int:
        """Delete all files of a namespace, also those of other processes; returns how many."""
        discarded = [path for path, _ in self._files() if path.name.startswith(stem(namespace))]
        for path in discarded:
            path.unlink(missing_ok=True)
        return len(discarded)

    def fetch(
        self, namespace: str, record: SegmentRecord, digest: bytes, fetch: Fetch, in_use: Collection[str]
    ) -> Path | None:
        """Fetch a file, or the rest of one whose fetching was interrupted.

        Args:
            in_use: stems of files that are not deleted to make room.

        Returns:
            Its path; None: another process is fetching it.

        Raises:
            StoreFullError: there is no room for it; SegmentCorruptError: what was sent is not the segment.
            OSError: the file system failed. SuffixError: of ``fetch``; what was received is kept.
        """
        name = stem(namespace, digest)
        partial = self._folder / f"{name}{_PARTIAL}"
        whole = partial.with_suffix(_WHOLE)
        with _locked(partial) as file:
            if file is None:
                return None
            if whole.exists():  # another process has fetched it meanwhile
                partial.unlink(missing_ok=True)
                return whole
            try:
                self._make_room(record.file_bytes, {*in_use, name})
                _receive(file, record, digest, fetch)
                Segment(partial).check()
                os.fsync(file.fileno())
                partial.replace(whole)
            except (StoreError, OSError) as error:
                partial.unlink(missing_ok=True)
                if isinstance(error, OSError):
                    raise disk_error(error, str(partial), "fetching a segment into") from error
                raise
            sync_folder_if_possible(self._folder)
            return whole

    def _make_room(self, need: int, keep: Collection[str]) -> None:
        files = sorted(self._files(), key=lambda each: each[1].st_mtime_ns)
        excess = need + sum(found.st_size for path, found in files if path.suffix == _WHOLE) - self._limit
        for path, found in files:
            if path.stem in keep:
                continue
            if path.suffix == _PARTIAL:
                _remove_abandoned(path)
            elif excess > 0:
                path.unlink(missing_ok=True)
                excess -= found.st_size
        if excess > 0:
            raise StoreFullError(
                f"the segments in {self._folder} must have at most {self._limit} bytes",
                got=f"{need} more bytes, {excess} of them too many",
                remedy="Raise the limit of the segment cache.",
            )

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith((_WHOLE, _PARTIAL)) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                        yield Path(entry.path), entry.stat(follow_symlinks=False)


def _receive(file: IO[bytes], record: SegmentRecord, digest: bytes, fetch: Fetch) -> None:
    """Append the rest of a segment file."""
    size = file.seek(0, os.SEEK_END)
    if size > record.file_bytes:
        size = file.truncate(0)
        file.seek(0)
    checked = False
    if size < record.file_bytes:
        for data in fetch(size):
            size += len(data)
            if size > record.file_bytes:
                break
            file.write(data)
            if not checked and size >= HEADER_BYTES:
                _require_digest(file, digest)
                checked = True
    file.flush()
    if size < record.file_bytes:  # what was received is kept
        raise ServiceUnavailableError(
            f"the service must send {record.file_bytes} bytes of segment {record.name}", got=size
        )
    if size > record.file_bytes:
        raise SegmentCorruptError(
            f"segment {record.name} must have {record.file_bytes} bytes", got=f"{size} bytes or more"
        )
    _require_digest(file, digest)


def _require_digest(file: IO[bytes], digest: bytes) -> None:
    file.flush()
    at = file.tell()
    if not has_digest(file, digest):
        raise SegmentCorruptError("the header of a fetched segment must have the digest of the manifest")
    file.seek(at)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes] | None]:
    """Open a file for appending that this thread alone may write to; None: another one writes to it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "r+b") as file:
        yield file if _lock(file) and _is_at(file, path) else None


def _lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether a file that was locked still has its name: its writer may have renamed or deleted it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> None:
    """Delete an unfinished file that no process writes to."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        if _lock(file) and _is_at(file, path):
            path.unlink()
