"""Segment files of a store as followers get them: digests of their headers, and their bytes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Final

import xxhash

from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.errors import InvalidInputError, UnknownSegmentError
from suffixsvc.index.published import PublishedSegment
from suffixsvc.log_types import SealedContents
from suffixsvc.log_wire import sealed_to_proto
from suffixsvc.store.files.folder import disk_error
from suffixsvc.v1 import watch_pb2

PIECE_BYTES: Final = 1 << 20
#: bytes of a segment's header, which has the checksums of the rest
_HEADER_BYTES: Final = 512
_CACHED_DIGESTS: Final = 16_384
#: of a file that is merged into another one while it is looked for
_ATTEMPTS: Final = 5


class SegmentFiles:
    """The segment files of one store. Thread-safe.

    Args:
        feed: has the manifests.
        max_message_bytes: limit on a reply.
    """

    def __init__(self, feed: LogFeed, max_message_bytes: int) -> None:
        self._feed = feed
        self._piece_bytes = min(PIECE_BYTES, max_message_bytes // 2)
        self._read_once = functools.lru_cache(_CACHED_DIGESTS)(self._read_digest)

    @property
    def folder(self) -> Path | None:
        """The folder of the files, which need not exist yet; None for a store in memory."""
        folder = self._feed.segment_folder
        return None if folder is None else folder.absolute()

    def sealed_to_proto(self, path: str, sealed: SealedContents) -> watch_pb2.SealedContents:
        """The segments of a namespace for the wire.

        Raises:
            FileNotFoundError: one of them was merged meanwhile.
            StoreError: one of them cannot be read.
        """
        return sealed_to_proto(path, sealed, self._digest)

    @staticmethod
    def published_to_proto(
        path: str, segment: PublishedSegment | None
    ) -> tuple[SealedContents, watch_pb2.SealedContents]:
        """Published runs, also for the wire.

        Raises:
            FileNotFoundError: they were withdrawn meanwhile.
            StoreError: they cannot be read.
        """
        if segment is None:
            return SealedContents(), watch_pb2.SealedContents(namespace=path)
        sealed, digest = SealedContents((segment.record,)), _header_digest(segment.path)
        return sealed, sealed_to_proto(path, sealed, lambda _name: digest)

    def _digest(self, name: str) -> bytes:
        # a segment that is rewritten twice can have its first name again
        path = self._path(name)
        with _reading(path):
            found = path.stat()
        return self._read_once(name, found.st_ino, found.st_mtime_ns)

    def _read_digest(self, name: str, _inode: int, _changed: int) -> bytes:
        return _header_digest(self._path(name))

    def _path(self, name: str) -> Path:
        folder = self.folder
        if folder is None:
            raise FileNotFoundError(name)
        return folder / name

    def open(self, path: str, name: str, offset: int) -> IO[bytes]:
        """Open a file of a namespace's manifest at an offset.

        Raises:
            UnknownSegmentError: the manifest does not have it.
            InvalidInputError: ``offset`` is after the end of the file.
            StoreError: it cannot be read.
        """
        for _ in range(_ATTEMPTS):
            if all(record.name != name for record in self._feed.segments(path)):
                break
            try:
                return _opened(self._path(name), offset)
            except FileNotFoundError:
                continue  # merged meanwhile, or lost: the manifest will say so
        raise _unknown_segment(path, name)

    def open_published(self, path: str, name: str, offset: int) -> IO[bytes]:
        """Open the file of the published runs of a namespace at an offset; raises as :meth:`open`."""
        segment = self._feed.publishing(path).published.current
        if segment is not None and segment.record.name == name:
            with contextlib.suppress(FileNotFoundError):
                return _opened(segment.path, offset)
        raise _unknown_segment(path, name)

    def pieces(self, file: IO[bytes]) -> Generator[watch_pb2.FetchSegmentReply, None, None]:
        """The rest of a file; closes it at the end. StoreError: it cannot be read."""
        with file, _reading(Path(file.name)):
            while data := file.read(self._piece_bytes):
                yield watch_pb2.FetchSegmentReply(data=data)


def _header_digest(path: Path) -> bytes:
    with _reading(path), path.open("rb") as file:
        return xxhash.xxh3_128_digest(file.read(_HEADER_BYTES))


def _opened(path: Path, offset: int) -> IO[bytes]:
    with _reading(path):
        file = path.open("rb")
        size = file.seek(0, 2)
    if offset > size:
        file.close()
        raise InvalidInputError("offset must be in the file", expected=f"0 .. {size}", got=offset)
    file.seek(offset)
    return file


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise StoreError for an OSError of the block, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error(error, str(path), "reading") from error


def _unknown_segment(path: str, name: str) -> UnknownSegmentError:
    return UnknownSegmentError(
        f"the manifest of namespace {path!r} must have the segment",
        got=ascii(name)[:200],
        remedy="The segment was merged or deleted: fetch those of the next SealedContents.",
    )
