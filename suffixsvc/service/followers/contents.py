"""Contents of namespaces for followers: all that the log holds of one, or the runs that it publishes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.errors import LimitExceededError, StoreError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.log_types import NamespaceContents, SealedContents
from suffixsvc.log_wire import PUBLISHED_GENERATION
from suffixsvc.service.followers.segment_files import SegmentFiles
from suffixsvc.types import StoredOutput
from suffixsvc.v1 import watch_pb2 as pb

#: a namespace and the edition of its published runs; None: there is none
Edition: TypeAlias = tuple[NamespaceIndex | None, int]

#: of contents whose segments are merged while they are read
_ATTEMPTS: Final = 5


class ContentsReader:
    """Reads the contents of namespaces.

    Args:
        feed: has the namespaces.
        segments: their files.
    """

    def __init__(self, feed: LogFeed, segments: SegmentFiles) -> None:
        self._feed, self._segments = feed, segments

    def whole(self, path: str, principal: str) -> tuple[NamespaceContents, pb.SealedContents]:
        """What the log holds of a namespace; nothing if it does not have it.

        Args:
            principal: whose learned tables are in it.

        Raises:
            StoreError: segment files are missing.
        """
        for _ in range(_ATTEMPTS):
            try:
                contents = self._feed.contents(path, principal)
            except UnknownNamespaceError:
                position = self._feed.position()
                contents = NamespaceContents(path, "", 0, position, SealedContents(), b"")
            try:
                return contents, self._segments.sealed_to_proto(path, contents.sealed)
            except FileNotFoundError:  # merged meanwhile
                continue
        raise _missing(path)

    def hot_outputs(self, contents: NamespaceContents) -> Iterator[StoredOutput]:
        """The outputs that no segment of the contents holds."""
        try:
            yield from self._feed.hot_outputs(contents)
        except UnknownNamespaceError:  # deleted meanwhile: the next round finds it
            return

    def edition(self, path: str) -> Edition:
        """The present edition of the published runs of a path."""
        try:
            index = self._feed.publishing(path)
        except (UnknownNamespaceError, LimitExceededError):  # being deleted, or one of too many
            return None, 0
        return index, index.published.edition

    def published(self, path: str) -> tuple[Edition, NamespaceContents, pb.SealedContents]:
        """The published runs of a path as contents, and their edition.

        Raises:
            StoreError: the file is missing.
        """
        position = self._feed.position()  # before the runs: those of later deletions are withdrawn by then
        for _ in range(_ATTEMPTS):
            index, edition = self.edition(path)
            segment, tokenizer = None, ""
            if index is not None:
                (edition, segment), tokenizer = index.published.read(), index.tokenizer
            try:
                sealed, message = self._segments.published_to_proto(path, segment)
            except FileNotFoundError:  # withdrawn meanwhile
                continue
            contents = NamespaceContents(path, tokenizer, PUBLISHED_GENERATION, position, sealed, b"")
            return (index, edition), contents, message
        raise _missing(path)


def _missing(path: str) -> StoreError:
    return StoreError(
        f"segment files of namespace {path!r} must exist and be readable",
        remedy="Start the service again: it rebuilds missing segments from the log.",
    )
