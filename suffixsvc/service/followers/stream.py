"""State of one call of Watch: what its follower asked for, and how far it was sent.

Two threads use it: one reads the follower's messages, one writes the replies (watch.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import grpc
import structlog

from suffixsvc.access.caller import Caller
from suffixsvc.access.principals import Right
from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.errors import InvalidInputError, LimitExceededError, ServiceUnavailableError
from suffixsvc.index import NamespaceIndex
from suffixsvc.log_types import LogPosition
from suffixsvc.log_wire import position_from_proto
from suffixsvc.service.calls.call_context import of_this_call
from suffixsvc.service.followers.live_feed import LiveFeed, Subscriber
from suffixsvc.service.followers.registry import FollowerRegistry
from suffixsvc.service.followers.requests import checked_uses, name_of
from suffixsvc.service.messages.errors import shutting_down_error
from suffixsvc.types import SegmentRecord
from suffixsvc.v1 import watch_pb2 as pb

log = structlog.get_logger(__name__)

#: namespaces of one follower
MAX_FOLLOWED: Final = 10_000
#: namespaces that a follower asked for, or not to be sent any more, and that were not looked at yet
_MAX_PENDING: Final = 2 * MAX_FOLLOWED
#: of a request for a namespace, which is kept until it is looked at: more than the longest valid one
_MAX_REQUEST_BYTES: Final = 1024


class StreamEnd(Exception):
    """The follower ended its stream."""


@dataclass(slots=True, eq=False)
class Followed:
    """A namespace that the stream sends.

    Attributes:
        tokenizer: fingerprint that the follower expects; empty: any.
        generation: that was sent, or that the follower holds; 0: the log does not hold the namespace.
        segments: the manifest that was sent; None: not known.
        published: the edition of the published runs that were sent, where nothing else is; None: all is sent.
        drafting: the follower was told last that it may draft.
    """

    path: str
    tokenizer: str
    generation: int = 0
    segments: tuple[SegmentRecord, ...] | None = None
    published: tuple[NamespaceIndex | None, int] | None = None
    drafting: bool = True


class FollowerStream:
    """The stream of one follower.

    Args:
        hello: its first message, checked.
        requests: its further messages.
        caller: whose follower it is.
        feed, registry, live: of the service.
    """

    def __init__(
        self,
        hello: pb.WatchHello,
        requests: Iterator[pb.WatchRequest],
        caller: Caller,
        feed: LogFeed,
        registry: FollowerRegistry,
        live: LiveFeed,
    ) -> None:
        self._requests = requests
        self._feed, self._registry, self._live = feed, registry, live
        self._lock = threading.Lock()
        #: the last request for each namespace, in their order; None: it is not to be sent any more
        self._pending: dict[str, pb.FollowNamespace | None] = {}
        #: ends the stream: an error, or StreamEnd
        self._end: BaseException | None = None
        self._signal = threading.Event()
        #: the greatest LSN that a position in a reply had, and the node of the log
        self.horizon = LogPosition(0, 0, 0)
        self.name = name_of(hello)
        self.caller = caller
        #: rights or policies may have changed since the stream looked at them
        self.rights_changed = False
        self._about = {**of_this_call(), "follower": self.name.follower_id}
        self.subscriber = Subscriber(self._signal.set, self._live_text_lost, caller.scope + hello.follower_id)
        self.follower = registry.connect(
            self.name, caller, self._signal.set, self._replaced, lambda: self.subscriber.queued_bytes
        )

    # -------------------------------------------------------------------------------------- life cycle

    def start(self) -> None:
        """Read the follower's messages in a thread of its own, and be woken by commits."""
        self._feed.subscribe(self._signal.set)
        # gRPC ends the thread's wait when the call ends
        threading.Thread(target=self._read, name="watch-requests", daemon=True).start()

    def close(self) -> None:
        """The call is over."""
        self._feed.unsubscribe(self._signal.set)
        self._live.leave(self.subscriber)
        self._registry.disconnect(self.follower)

    def end(self, error: BaseException | None = None) -> None:
        """End the stream: with an error, or without one because the client has gone."""
        with self._lock:
            self._end = self._end or error or StreamEnd()
        self._signal.set()

    def drain(self) -> None:
        """End the stream because the service stops."""
        self.end(shutting_down_error("Connect again, with the position reached."))

    def check_rights(self) -> None:
        """Make the stream look again at what its caller may follow, and draft from."""
        self.rights_changed = True
        self._signal.set()

    def _replaced(self) -> None:
        self.end(
            ServiceUnavailableError(
                f"follower_id {self.name.follower_id} must have one stream at a time: another one has begun",
                remedy="Use an id of its own for every follower.",
            )
        )

    def require_open(self) -> None:
        """Raise the error that ends the stream, or StreamEnd."""
        if self._end is not None:
            raise self._end

    def wait(self, seconds: float) -> None:
        """Wait for a commit, live text or a message of the follower; calls before count."""
        self._signal.wait(seconds)
        self._signal.clear()

    # ---------------------------------------------------------------------------------------- requests

    def take_requests(self) -> dict[str, pb.FollowNamespace | None]:
        """Take what the follower asked for since the last call."""
        with self._lock:
            taken, self._pending = self._pending, {}
            return taken

    def _read(self) -> None:
        try:
            for request in self._requests:
                self._receive(request)
        except grpc.RpcError:
            self.end()
        except Exception as error:
            self.end(error)
        else:
            self.end()

    def _receive(self, request: pb.WatchRequest) -> None:
        match request.WhichOneof("request"):
            case "follow" | "unfollow" if request.ByteSize() > _MAX_REQUEST_BYTES:
                raise InvalidInputError(
                    "a request for a namespace must hold a path and a fingerprint that can be valid",
                    expected=f"at most {_MAX_REQUEST_BYTES} bytes",
                    got=request.ByteSize(),
                )
            case "follow":
                self._request(request.follow.namespace, request.follow)
            case "unfollow":
                self._request(request.unfollow.namespace, None)
            case "report":
                self._report(request.report)
            case "hello":
                raise InvalidInputError("a stream must have one hello, as its first message", got="another")
            case _:
                raise InvalidInputError(
                    "a message of Watch must hold a request",
                    expected="follow, unfollow or report",
                    got="none",
                )

    def _request(self, path: str, follow: pb.FollowNamespace | None) -> None:
        # before its next report, which ends what the stream before this one carried
        if follow is not None and (self.caller.sees_all(path) or self.gets_published(path)):
            self._registry.follow(self.follower, path)
            if unlearned := self._feed.unlearned(path):  # else a path that need not exist would be kept
                self.follower.unlearned.setdefault(path, unlearned)
        with self._lock:
            self._pending.pop(path, None)
            self._pending[path] = follow
            pending = len(self._pending)
        if pending > _MAX_PENDING:
            raise LimitExceededError(
                "requests for namespaces must be sent as fast as they are answered, or slower",
                expected=f"at most {_MAX_PENDING} that are not answered",
                got=pending,
                remedy=f"Follow at most {MAX_FOLLOWED} namespaces.",
            )
        self._signal.set()

    def gets_published(self, path: str) -> bool:
        """Whether the follower is sent the published runs of a namespace, and nothing else of it."""
        return (
            self._feed.publishes(path)
            and self.caller.may(Right.READ, path)
            and not self.caller.sees_all(path)
        )

    def _report(self, report: pb.FollowerReport) -> None:
        uses = checked_uses(report)
        applied, horizon = position_from_proto(report.applied), self.horizon
        # a position of another log, or one that was not sent, says nothing
        known = applied.node_id == horizon.node_id and applied.lsn <= horizon.lsn
        lsn = applied.lsn if known else 0
        self._registry.report(
            self.follower, lsn, report.held_bytes, report.mapped_bytes, report.unacknowledged_tokens
        )
        for path, output_ids, counts, learned in uses:
            sees_all = self.caller.sees_all(path)
            if path not in self.follower.namespaces or not (sees_all or self.gets_published(path)):
                continue
            # a reader of published runs keeps what it learns
            kept = learned if sees_all and self._is_of_present_text(path, learned) else b""
            used = output_ids if sees_all else ()
            if not self._feed.record_use(path, used, counts, kept, self.caller.principal):
                log.warning(
                    "what a follower learned is not merged: it is damaged or of another version",
                    namespace=path,
                    **self._about,
                )

    def _is_of_present_text(self, path: str, learned: bytes) -> bool:
        """Whether a follower learned this after the last deletion that reset what its namespace has learned.

        The first report after a deletion is of before it in part, and is left out.
        """
        unlearned = self._feed.unlearned(path)
        known = self.follower.unlearned.get(path, 0) == unlearned
        if learned and not known:
            self.follower.unlearned[path] = unlearned
        return known

    def _live_text_lost(self) -> None:
        self._registry.count_lost(self.follower)
        log.info("live text dropped: a follower does not keep up", **self._about)
