"""Segments of a service: mapped from its own files on the same host, else fetched once into a cache folder.

    the service's folder ──┐ same user, size, digest of the header
    cache folder ──────────┼──> mapped
    FetchSegment ──> cache ┘ all of it checked

The header holds the checksums of the rest, which are verified as it is read. Drafts go on without a segment
that cannot be opened; it can be tried again later.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from suffixsvc.core.segments import Segment
from suffixsvc.errors import StoreError, SuffixError
from suffixsvc.types import OutputId, SegmentRecord
from suffixsvc_follower.contents.segment_cache import SegmentCache, default_cache_folder, has_digest, stem

log = logging.getLogger(__name__)

#: the rest of a segment file of a namespace, by its name, from an offset on
FetchSegment = Callable[[str, str, int], Iterable[bytes]]


class SegmentSource:
    """Opens segments. Thread-safe.

    Args:
        cache_folder: folder of fetched segments, see :class:`SegmentCache`; None: the user's cache folder.
            It is created with the first segment that is not on this host.
        limit_bytes: limit of the files in it; 0: nothing is fetched.
        fetch: fetches a segment; it raises errors of this project.
    """

    def __init__(self, cache_folder: Path | None, limit_bytes: int, fetch: FetchSegment) -> None:
        self._folder = cache_folder
        self._limit = limit_bytes
        self._fetch = fetch
        self._lock = threading.Lock()
        self._cache: SegmentCache | None = None
        #: stems of the files that were opened from the cache and not released
        self._in_use: set[str] = set()

    def open(
        self,
        namespace: str,
        record: SegmentRecord,
        digest: bytes,
        deleted: Iterable[OutputId],
        folder: str,
        *,
        fetch: bool = True,
    ) -> Segment | None:
        """Open a segment.

        Args:
            namespace: path of its namespace.
            record: its row in the manifest.
            digest: xxh3-128 of the file's first 512 bytes.
            deleted: outputs in it that must not be drafted from.
            folder: the service's folder of segments; "" if it is on another host.
            fetch: fetch it if it is not on this host, which takes as long as it takes.

        Returns:
            The segment; None, logged: it cannot be opened now.
        """
        gone = [output_id for output_id in deleted if record.covers(output_id)]
        if folder:
            segment = _map_shared(Path(folder) / record.name, record, digest, gone)
            if segment is not None:
                return segment
        if not (fetch and self._limit):
            return None
        try:
            return self._open_cached(namespace, record, digest, gone)
        except (SuffixError, OSError) as error:
            log.warning(
                "segment %s of namespace %s cannot be opened; drafts go on without it: %s",
                record.name,
                namespace,
                error,
            )
            return None

    def release(self, namespace: str, digests: Iterable[bytes]) -> None:
        """These segments are not used any more: the cache may delete their files."""
        with self._lock:
            self._in_use.difference_update(stem(namespace, digest) for digest in digests)

    def discard(self, namespace: str) -> None:
        """Delete what the cache has of a namespace: this process may hold nothing of it any more."""
        with self._lock:
            self._in_use = {each for each in self._in_use if not each.startswith(stem(namespace))}
            if self._cache is None and not (self._folder or default_cache_folder()).is_dir():
                return
        try:
            discarded = self._opened_cache().discard(namespace)
        except (SuffixError, OSError) as error:
            log.warning("fetched segments of namespace %s cannot be deleted: %s", namespace, error)
            return
        if discarded:
            log.info("%d fetched segments of namespace %s were deleted", discarded, namespace)

    def _opened_cache(self) -> SegmentCache:
        with self._lock:
            if self._cache is None:
                self._cache = SegmentCache(self._folder or default_cache_folder(), self._limit)
            return self._cache

    def _open_cached(
        self, namespace: str, record: SegmentRecord, digest: bytes, deleted: list[OutputId]
    ) -> Segment | None:
        cache = self._opened_cache()
        with self._lock:
            in_use = set(self._in_use)
        path = cache.find(namespace, record, digest)
        if path is not None:
            try:
                return self._opened(namespace, path, digest, deleted)
            except StoreError:
                cache.remove(namespace, digest)  # its header is whole and its tables are not: fetch it again
        path = cache.fetch(
            namespace, record, digest, lambda offset: self._fetch(namespace, record.name, offset), in_use
        )
        if path is None:
            log.info("another process is fetching segment %s of namespace %s", record.name, namespace)
            return None
        return self._opened(namespace, path, digest, deleted)

    def _opened(self, namespace: str, path: Path, digest: bytes, deleted: list[OutputId]) -> Segment:
        segment = Segment(path, deleted)
        with self._lock:
            self._in_use.add(stem(namespace, digest))
        return segment


def _map_shared(path: Path, record: SegmentRecord, digest: bytes, deleted: list[OutputId]) -> Segment | None:
    """Map a file of a service of this user on this host; None if it is not that file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                return None
            if found.st_size != record.file_bytes or not has_digest(file, digest):
                return None
        return Segment(path, deleted)
    except (OSError, StoreError):  # on another host, or merged meanwhile
        return None
