"""The replies of Watch: contents of the namespaces that a follower names, then what changes.

Nothing is queued but live text: changes are read from the log when the stream is ready to send, so that a
slow follower costs no memory. One round of the stream:

    take live text ──> contents of new namespaces ──> changes of the log ──> manifests ──> send the live text

Live text is taken before the changes are read and sent after them: the output of a closed session arrives
before its live text is retracted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import structlog

from suffixsvc.access.principals import Right
from suffixsvc.config import validate_namespace
from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.errors import (
    LimitExceededError,
    PermissionDeniedError,
    SuffixError,
    UnknownNamespaceError,
    tokenizer_mismatch,
)
from suffixsvc.log_types import LogChanges, LogPosition, covers
from suffixsvc.log_wire import position_from_proto
from suffixsvc.service.followers.contents import ContentsReader
from suffixsvc.service.followers.live_feed import LiveFeed
from suffixsvc.service.followers.registry import FollowerRegistry
from suffixsvc.service.followers.replies import ReplyWriter, TooLargeError
from suffixsvc.service.followers.segment_files import SegmentFiles
from suffixsvc.service.followers.stream import MAX_FOLLOWED, Followed, FollowerStream, StreamEnd
from suffixsvc.v1 import watch_pb2 as pb

log = structlog.get_logger(__name__)

#: part of a lease after which the position is sent if nothing else was
_HEARTBEATS_PER_LEASE: Final = 3
#: live text of namespaces that begin again after live text was dropped: bytes of one round
_AGAIN_BYTES: Final = 1 << 20
#: namespaces whose contents are sent in one round, before changes of the others and live text
_CONTENTS_PER_ROUND: Final = 16


class WatchReplies:
    """Makes the replies of one stream. Used by one thread.

    Args:
        stream: the stream.
        hello: its first message.
        feed, registry, live, segments, writer: of the service.
    """

    def __init__(
        self,
        stream: FollowerStream,
        hello: pb.WatchHello,
        *,
        feed: LogFeed,
        registry: FollowerRegistry,
        live: LiveFeed,
        segments: SegmentFiles,
        writer: ReplyWriter,
    ) -> None:
        self._stream = stream
        self._feed, self._registry, self._live = feed, registry, live
        self._segments, self._writer = segments, writer
        self._reader = ContentsReader(feed, segments)
        self._heartbeat_seconds = registry.lease_seconds / _HEARTBEATS_PER_LEASE
        self._followed: dict[str, Followed] = {}
        #: paths of the generations whose changes are sent
        self._paths: dict[int, str] = {}
        #: what the follower holds, if it says so, and the log leads on from there
        self._held: LogPosition | None = None
        #: the log was read up to here, and the follower was told so up to there
        self._position = self._told = LogPosition(0, 0, 0)
        self._hello = hello
        #: number of commits, and the layout, at the last look at the log
        self._events = -1
        self._layout: tuple[object, object] = (None, None)
        #: manifests have to be compared even if the layout is the same
        self._compare_manifests = False
        #: namespaces whose contents have to be sent, or sent again
        self._to_send: dict[str, None] = {}
        #: of these, those of which the follower may hold older contents: until they are replaced, it must not
        #: be told a position, which it would report as applied
        self._stale: set[str] = set()
        #: namespaces whose live text begins again
        self._to_begin_again: dict[str, None] = {}
        #: namespaces whose live text began in this round
        self._begun: set[str] = set()
        self._sent_at = time.monotonic()

    def __iter__(self) -> Iterator[bytes]:
        """The replies after the welcome, until the stream ends.

        Raises:
            SuffixError: the error that ends the stream.
        """
        self._begin()
        try:
            while True:
                for reply in self._round():
                    self._sent_at = time.monotonic()
                    yield reply
                    self._stream.require_open()
                if not (self._to_send or self._to_begin_again):
                    self._stream.wait(self._sent_at + self._heartbeat_seconds - time.monotonic())
                self._stream.require_open()
        except StreamEnd:
            return

    def _begin(self) -> None:
        """Find the position to begin at: that of the hello, if the log leads on from there."""
        if self._hello.HasField("position"):
            held = position_from_proto(self._hello.position)
            if self._feed.changes(held, ()) is not None:
                self._held = held
        self._position = self._told = self._held or self._feed.position()
        self._reach(self._position)

    def _reach(self, position: LogPosition) -> None:
        """Record a position that is sent next."""
        if position.lsn >= self._stream.horizon.lsn or position.node_id != self._stream.horizon.node_id:
            self._stream.horizon = position

    def _round(self) -> Iterator[bytes]:
        subscriber = self._stream.subscriber
        live = subscriber.take()
        if subscriber.lost:
            live = []
            subscriber.begin_again()
            whole = (path for path, each in self._followed.items() if each.published is None)
            self._to_begin_again = dict.fromkeys(whole)
        size = 0
        while self._to_begin_again and size < _AGAIN_BYTES:
            path = next(iter(self._to_begin_again))
            del self._to_begin_again[path]
            again = self._live.subscribe(subscriber, path, reset=True)
            live += [(path, message) for message in again]
            size += sum(map(len, again))
        self._begun.clear()
        yield from self._check_rights()
        yield from self._take_requests()
        yield from self._changes_of_layout_and_log()
        # that of namespaces that were sent since is older than their contents
        yield from (message for path, message in live if path in self._followed and path not in self._begun)
        yield from self._heartbeat()

    def _heartbeat(self) -> Iterator[bytes]:
        """Send the position, if it is awaited or nothing else was sent for long."""
        if self._stale:
            return
        awaited = self._told.lsn < self._registry.awaited <= self._position.lsn
        if awaited or time.monotonic() - self._sent_at >= self._heartbeat_seconds:
            yield self._tell(self._writer.position(self._position))

    def _tell(self, reply: bytes) -> bytes:
        """A reply that tells the present position."""
        self._told = self._position
        self._reach(self._position)
        return reply

    # ---------------------------------------------------------------------------------------- requests

    def _check_rights(self) -> Iterator[bytes]:
        """Refuse the namespaces that the follower may follow no longer, before anything else is sent."""
        if not self._stream.rights_changed:
            return
        self._stream.rights_changed = False
        for path, followed in list(self._followed.items()):
            if followed.published is not None:
                if self._stream.gets_published(path):
                    continue
                if self._stream.caller.sees_all(path):
                    followed.published = None
                    self._send_again(path)
                    continue
            try:  # also where it gets published runs from now on: it must delete what it holds
                self._stream.caller.require(Right.FOLLOW, path)
            except PermissionDeniedError as error:
                yield self._refuse(path, error)
            else:
                yield from self._drafting(path)

    def _drafting(self, path: str) -> Iterator[bytes]:
        """Send whether a namespace may be drafted from, unless the follower was told so."""
        followed, drafting = self._followed[path], self._feed.drafting(path)
        if followed.drafting != drafting:
            followed.drafting = drafting
            yield self._writer.drafting(path, off=not drafting)

    def _take_requests(self) -> Iterator[bytes]:
        for path, follow in self._stream.take_requests().items():
            if follow is None:
                self._drop(path)
                continue
            try:
                validate_namespace(path)
                published = self._stream.gets_published(path)
                if not published:
                    self._stream.caller.require(Right.FOLLOW, path)
                if path not in self._followed and len(self._followed) >= MAX_FOLLOWED:
                    raise LimitExceededError(
                        f"namespaces of a follower must be at most {MAX_FOLLOWED}",
                        got=MAX_FOLLOWED + 1,
                        remedy="Unfollow namespaces that are not used.",
                    )
            except SuffixError as error:
                yield self._refuse(path, error)
                continue
            yield from self._follow(path, follow, published)

    def _follow(self, path: str, follow: pb.FollowNamespace, published: bool) -> Iterator[bytes]:
        self._registry.follow(self._stream.follower, path)  # before the log is read: a deletion may follow
        self._forget_generation(path)
        followed = Followed(path, follow.tokenizer, drafting=not follow.drafting_off)
        followed.published = (None, 0) if published else None
        self._followed[path] = followed
        yield from self._drafting(path)  # before there is anything to draft from
        self._to_send[path] = None
        if not follow.generation:
            return
        self._stale.add(path)
        if self._held is None or published:
            return
        generation, tokenizer = self._feed.record(path)
        if generation != follow.generation or not _matches(follow.tokenizer, tokenizer):
            return
        repeated: list[bytes] = []
        if self._position != self._held:
            # changes since the hello, of which this namespace's were not sent: one part of them, or contents
            found = self._feed.changes(self._held, (generation,))
            if found is None or found.position.lsn < self._position.lsn:
                return
            missed = LogChanges(found.outputs, found.deletions, self._told)
            try:
                repeated += self._writer.changes(missed, {generation: path}, self._told)
            except TooLargeError:
                return
        del self._to_send[path]
        self._stale.discard(path)
        followed.generation = generation
        self._paths[generation] = path
        self._compare_manifests = True
        yield from repeated
        yield from self._begin_live(path)

    def _send_again(self, path: str) -> None:
        """Send contents that replace older ones, before a position is told."""
        self._to_send[path] = None
        self._stale.add(path)

    def _begin_live(self, path: str) -> Iterator[bytes]:
        self._begun.add(path)
        yield from self._live.subscribe(self._stream.subscriber, path, reset=True)

    def _drop(self, path: str) -> None:
        """Stop sending a namespace."""
        self._forget_generation(path)
        self._followed.pop(path, None)
        self._to_send.pop(path, None)
        self._stale.discard(path)
        self._to_begin_again.pop(path, None)
        self._live.unsubscribe(self._stream.subscriber, path)
        self._registry.unfollow(self._stream.follower, path)

    def _forget_generation(self, path: str) -> None:
        if (followed := self._followed.get(path)) is not None:
            self._paths.pop(followed.generation, None)

    def _refuse(self, path: str, error: SuffixError) -> bytes:
        self._drop(path)
        log.info(
            "a follower is refused a namespace",
            follower=self._stream.name.follower_id,
            namespace=path[:200],
            error=str(error),
        )
        return self._writer.refused(path, error)

    # -------------------------------------------------------------------------------- contents, changes

    def _changes_of_layout_and_log(self) -> Iterator[bytes]:
        """Send what changed since the last look; nothing is read if there was no commit."""
        events = self._feed.events
        if not self._followed:
            return
        if events == self._events and not (self._to_send or self._compare_manifests):
            return
        self._events = events
        before, self._layout = self._layout, self._feed.layout()
        changed = any(old is not new for old, new in zip(before, self._layout, strict=True))
        if changed:
            yield from self._find_other_generations()
        self._find_republished()
        for path in list(self._to_send)[:_CONTENTS_PER_ROUND]:
            yield from self._contents(path)
        if not self._stale:
            yield from self._log_changes()
        if changed or self._compare_manifests:
            self._compare_manifests = False
            yield from self._manifests()

    def _find_other_generations(self) -> Iterator[bytes]:
        """Find namespaces that were created, deleted or bound to another tokenizer."""
        for path, followed in list(self._followed.items()):
            if followed.published is not None:
                continue
            generation, tokenizer = self._feed.record(path)
            if not _matches(followed.tokenizer, tokenizer):
                yield self._refuse(path, tokenizer_mismatch(path, tokenizer, followed.tokenizer))
            elif generation != followed.generation:
                self._to_send[path] = None

    def _find_republished(self) -> bool:
        """Find published runs that were replaced or withdrawn; whether any were."""
        found = False
        for path, followed in self._followed.items():
            sent = followed.published
            if sent is not None and path not in self._to_send and sent != self._reader.edition(path):
                self._send_again(path)
                found = True
        return found

    def _published_contents(self, path: str, followed: Followed) -> Iterator[bytes]:
        """Send published runs in the place of whatever the follower holds."""
        followed.published, contents, sealed = self._reader.published(path)
        if not _matches(followed.tokenizer, contents.tokenizer):
            yield self._refuse(path, tokenizer_mismatch(path, contents.tokenizer, followed.tokenizer))
            return
        self._reach(contents.position)
        yield self._writer.contents(contents, sealed)
        yield from self._writer.hot_outputs(path, ())
        yield from self._writer.live(path, (), reset=True)
        self._stale.discard(path)

    def _contents(self, path: str) -> Iterator[bytes]:
        followed = self._followed[path]
        del self._to_send[path]
        self._live.unsubscribe(self._stream.subscriber, path)
        self._forget_generation(path)
        if followed.published is not None:
            yield from self._published_contents(path, followed)
            return
        contents, sealed = self._reader.whole(path, self._stream.caller.principal)
        if not _matches(followed.tokenizer, contents.tokenizer):
            yield self._refuse(path, tokenizer_mismatch(path, contents.tokenizer, followed.tokenizer))
            return
        followed.generation, followed.segments = contents.generation, contents.sealed.segments
        if contents.generation:
            self._paths[contents.generation] = path
        self._reach(contents.position)
        try:
            yield self._writer.contents(contents, sealed)
            yield from self._writer.hot_outputs(path, self._reader.hot_outputs(contents))
        except TooLargeError as error:
            yield self._refuse(path, error.error)
            return
        self._stale.discard(path)
        yield from self._begin_live(path)

    def _log_changes(self) -> Iterator[bytes]:
        while True:
            found = self._feed.changes(self._position, self._paths.keys())
            if found is None:  # the follower was too slow, or the store was replaced by an older one
                self._position = self._told = self._feed.position()
                self._held = None
                self._to_send = dict.fromkeys(self._followed)
                self._stale = set(self._followed)
                return
            if found.position == self._position:
                return
            if self._find_republished():  # by a deletion up to this position
                return
            if found.outputs or found.deletions:
                self._reach(found.position)
                try:
                    yield from self._writer.changes(found, self._paths, self._told)
                except TooLargeError as error:
                    yield self._refuse(error.path, error.error)
                    continue
                self._told = found.position
            self._position = found.position

    def _manifests(self) -> Iterator[bytes]:
        """Send the manifests that have changed."""
        for path, followed in list(self._followed.items()):
            if path in self._to_send or not followed.generation or followed.published is not None:
                continue
            segments = self._feed.segments(path)
            if segments == followed.segments:
                continue
            if followed.segments is not None and not covers(segments, followed.segments):
                # outputs of a segment that was lost are hot again
                self._to_send[path] = None
                continue
            try:
                sealed = self._feed.sealed(path)
                message = self._segments.sealed_to_proto(path, sealed)
                yield self._writer.sealed(path, message)
            except (UnknownNamespaceError, FileNotFoundError):  # changed meanwhile: looked at again
                self._compare_manifests = True
            except TooLargeError as error:
                yield self._refuse(path, error.error)
            else:
                followed.segments = sealed.segments


def _matches(expected: str, tokenizer: str) -> bool:
    """Whether a follower's fingerprint goes with that of a namespace; "" goes with any."""
    return not expected or not tokenizer or expected == tokenizer
