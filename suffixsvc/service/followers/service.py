"""What the service offers to followers: streams, segment files, receipts of deletions, statistics."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from typing import TYPE_CHECKING, Final

import structlog

from suffixsvc import __version__
from suffixsvc.access.caller import Caller
from suffixsvc.access.principals import OPERATOR, Right
from suffixsvc.config import Limits
from suffixsvc.errors import SuffixError
from suffixsvc.log_wire import WATCH_PROTOCOL
from suffixsvc.service.followers.live_feed import LiveFeed
from suffixsvc.service.followers.registry import FollowerRegistry
from suffixsvc.service.followers.replies import ReplyWriter
from suffixsvc.service.followers.requests import checked_hello
from suffixsvc.service.followers.segment_files import SegmentFiles
from suffixsvc.service.followers.stream import FollowerStream
from suffixsvc.service.followers.watch import WatchReplies
from suffixsvc.service.sessions.table import SessionTable
from suffixsvc.types import DeletionReceipt, FollowerName
from suffixsvc.v1 import watch_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

log = structlog.get_logger(__name__)

#: time without a message after which a follower stops drafting from shared text
LEASE_SECONDS: Final = 15.0
#: longest wait for followers to apply a deletion
_RECEIPT_SECONDS: Final = 1.0
#: namespaces of a follower that are listed in the statistics of the whole service
_LISTED_NAMESPACES: Final = 100


class FollowerService:
    """The followers of one service. Thread-safe.

    Args:
        cache: the engine.
        sessions: the live sessions.
        limits: of the service.
        instance_id: of this run of the service.
        lease_seconds: see :data:`LEASE_SECONDS`.
    """

    def __init__(
        self,
        cache: SuffixCache,
        sessions: SessionTable,
        limits: Limits,
        instance_id: str,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._cache = cache
        self._instance_id = instance_id
        self._writer = ReplyWriter(limits.max_message_bytes)
        self._segments = SegmentFiles(cache.feed, limits.max_message_bytes)
        self.registry = FollowerRegistry(lease_seconds)
        self.live = LiveFeed(sessions, self._writer, cache.feed.written)
        self._lock = threading.Lock()
        self._streams: set[FollowerStream] = set()
        self._draining = False

    def watch(
        self,
        requests: Iterator[pb.WatchRequest],
        caller: Caller,
        *,
        local: bool,
        on_end: Callable[[Callable[[], None]], bool],
    ) -> Generator[bytes, None, None]:
        """The replies of one stream, serialised.

        Args:
            requests: the messages of the follower.
            caller: whose follower it is.
            local: it is on this host.
            on_end: calls its argument when the call ends; False if it has ended already.

        Raises:
            InvalidInputError: a message is malformed.
            UnsupportedVersionError: the follower speaks another version.
            LimitExceededError: a message has too many elements.
            ServiceUnavailableError: the service stops, or the follower has another stream.
        """
        hello = checked_hello(next(requests, None))
        stream = FollowerStream(hello, requests, caller, self._cache.feed, self.registry, self.live)
        with self._lock:
            self._streams.add(stream)
            draining = self._draining
        if draining:
            stream.drain()
        about = {"follower": stream.name.follower_id, "description": stream.name.description}
        about["principal"] = caller.principal
        log.info("follower connected", **about)
        why: object = "the stream ended"
        try:
            if not on_end(stream.end):
                return
            stream.start()
            yield self._welcome(local=local and caller.principal == OPERATOR).SerializeToString()
            yield from WatchReplies(
                stream,
                hello,
                feed=self._cache.feed,
                registry=self.registry,
                live=self.live,
                segments=self._segments,
                writer=self._writer,
            )
        except SuffixError as error:
            why = error
            raise
        finally:
            stream.close()
            with self._lock:
                self._streams.discard(stream)
            with contextlib.suppress(Exception):  # a log that cannot be written
                log.info("follower disconnected", **about, why=str(why))

    def _welcome(self, *, local: bool) -> pb.WatchReply:
        folder = self._segments.folder
        welcome = pb.WatchWelcome(
            protocol=WATCH_PROTOCOL,
            version=__version__,
            instance_id=self._instance_id,
            lease_seconds=self.registry.lease_seconds,
            segment_folder=str(folder) if local and folder is not None else "",
            default_reads=[
                pb.DefaultRead(namespace=record.path, tokenizer=record.tokenizer)
                for record in self._cache.default_reads()
            ],
        )
        return pb.WatchReply(welcome=welcome)

    def fetch_segment(self, request: pb.FetchSegmentRequest) -> Generator[pb.FetchSegmentReply, None, None]:
        """A segment file from an offset on, in pieces. It is open before the first piece is made, so that its
        deletion meanwhile does no harm.

        Raises:
            UnknownSegmentError: the manifest of the namespace does not have it.
            InvalidInputError: the offset is after its end.
            StoreError: it cannot be read.
        """
        file = self._segments.open(request.namespace, request.name, request.offset)
        return self._segments.pieces(file)

    def fetch_published(self, request: pb.FetchSegmentRequest) -> Generator[pb.FetchSegmentReply, None, None]:
        """As :meth:`fetch_segment`, of the published runs of a namespace."""
        return self._segments.pieces(
            self._segments.open_published(request.namespace, request.name, request.offset)
        )

    def receipt(self, paths: Collection[str]) -> pb.DeletionReceipt:
        """Wait a short time for the followers of namespaces to apply a deletion that is durable."""
        until = time.monotonic() + min(_RECEIPT_SECONDS, self.registry.lease_seconds)
        receipts = [self._receipt_of(path, max(0.0, until - time.monotonic())) for path in paths]
        silent = dict.fromkeys(each for receipt in receipts for each in receipt.silent)
        acknowledged = dict.fromkeys(each for receipt in receipts for each in receipt.acknowledged)
        return pb.DeletionReceipt(
            acknowledged=[_name_to_proto(each) for each in acknowledged if each not in silent],
            silent=[_name_to_proto(each) for each in silent],
        )

    def _receipt_of(self, path: str, seconds: float) -> DeletionReceipt:
        try:
            receipt = self.registry.receipt(path, self._cache.feed.position, seconds)
        except SuffixError as error:  # the store failed after the deletion, which is not undone
            log.warning("no receipt of a deletion", namespace=path, error=str(error))
            receipt = DeletionReceipt((), tuple(state.name for state in self.registry.states(path)))
        if receipt.silent:
            log.warning(
                "followers have not applied a deletion yet",
                namespace=path,
                silent=[each.follower_id for each in receipt.silent[:16]],
            )
        return receipt

    def check_rights(self) -> None:
        """Make all streams look again at what their callers may follow, and draft from."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.check_rights()

    def stats(self, path: str, caller: Caller) -> list[pb.FollowerStats]:
        """The followers of a namespace, or all (""): an administrator's answer; others see their own."""
        all_of = caller.may(Right.ADMIN, path) if path else caller.may_everywhere(Right.ADMIN)
        states = [s for s in self.registry.states(path) if all_of or s.principal == caller.principal]
        last = self._cache.feed.position().lsn if states else 0
        return [
            pb.FollowerStats(
                follower_id=state.name.follower_id,
                description=state.name.description,
                namespaces=[path] if path else state.namespaces[:_LISTED_NAMESPACES],
                connected=state.connected,
                applied_lsn=state.applied,
                lag=max(0, last - state.applied),
                silent_seconds=state.silent_seconds,
                held_bytes=state.held_bytes,
                mapped_bytes=state.mapped_bytes,
                live_lost=state.live_lost,
                live_queued_bytes=state.live_queued_bytes,
                unacknowledged_tokens=state.unacknowledged_tokens,
            )
            for state in states
        ]

    def drain(self) -> None:
        """End all streams, and those that begin later, with the error of a service that stops."""
        with self._lock:
            self._draining = True
            streams = list(self._streams)
        self.registry.close()
        self.live.close()
        for stream in streams:
            stream.drain()


def _name_to_proto(name: FollowerName) -> pb.FollowerName:
    return pb.FollowerName(follower_id=name.follower_id, description=name.description)
