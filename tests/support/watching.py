"""A follower of a service for tests: it applies the messages of Watch and holds what they say."""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.core.segments import Segment
from suffixsvc.errors import SuffixError
from suffixsvc.log_types import LogPosition
from suffixsvc.log_wire import (
    WATCH_PROTOCOL,
    live_tokens,
    output_from_proto,
    position_from_proto,
    position_to_proto,
    sealed_from_proto,
    unpack_ids,
)
from suffixsvc.service.followers.service import FollowerService
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc.types import SegmentRecord
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_client.transport.interface import error_from_rpc
from support.serving import PATIENCE_S, eventually, socket_dir

__all__ = ["LEASE_SECONDS", "Held", "LocalStream", "Mirror", "WatchCall", "WatchReader", "hello", "watched"]

LEASE_SECONDS = 0.6


@contextlib.contextmanager
def watched(
    cache: SuffixCache,
    limits: Limits | None = None,
    lease_seconds: float = LEASE_SECONDS,
    max_followers: int = 8,
) -> Iterator[str]:
    """The address of a server with a short lease."""
    with socket_dir() as folder:
        server = SuffixServer(
            cache,
            [parse_address(f"unix:{folder}/s")],
            limits=limits,
            lease_seconds=lease_seconds,
            max_followers=max_followers,
        )
        try:
            [address] = server.start()
            yield address
        finally:
            server.drain()


def hello(
    follower_id: str = "", position: LogPosition | None = None, protocol: int = WATCH_PROTOCOL
) -> pb.WatchRequest:
    message = pb.WatchHello(
        protocol=protocol, follower_id=follower_id or str(uuid.uuid4()), description="a test"
    )
    if position is not None:
        message.position.CopyFrom(position_to_proto(position))
    return pb.WatchRequest(hello=message)


class WatchCall:
    """One call of Watch, whose replies are read one by one."""

    def __init__(self, address: str, *requests: pb.WatchRequest) -> None:
        self._requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        # a small window, so that few replies wait in a channel that is not read
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        )
        for request in requests:
            self.send(request)
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(self._channel)
        self.call = stub.Watch(iter(self._requests.get, None), timeout=PATIENCE_S)

    def send(self, request: pb.WatchRequest) -> None:
        self._requests.put(request)

    def follow(self, path: str, generation: int = 0, tokenizer: str = "") -> None:
        message = pb.FollowNamespace(namespace=path, generation=generation, tokenizer=tokenizer)
        self.send(pb.WatchRequest(follow=message))

    def unfollow(self, path: str) -> None:
        self.send(pb.WatchRequest(unfollow=pb.UnfollowNamespace(namespace=path)))

    def report(self, applied: LogPosition, *used: pb.NamespaceUse) -> None:
        report = pb.FollowerReport(
            applied=position_to_proto(applied), held_bytes=11, mapped_bytes=22, used=used
        )
        self.send(pb.WatchRequest(report=report))

    def next(self) -> pb.WatchReply:
        reply: pb.WatchReply = next(self.call)
        return reply

    def error(self) -> SuffixError:
        """Read to the end; the error of it."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error_from_rpc(error)
        raise AssertionError("the stream ended without an error")

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Held:
    """What a follower holds of one namespace."""

    generation: int = 0
    tokenizer: str = ""
    hot: dict[int, tuple[int, ...]] = field(default_factory=dict)
    segments: tuple[SegmentRecord, ...] = ()
    dead: set[int] = field(default_factory=set)
    complete: bool = False
    #: positions and tokens of output, by session
    live: dict[str, dict[int, int]] = field(default_factory=dict)
    #: of each session that ended: whether it had ended when its output was not there
    ended: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    contents: int = 0
    resets: int = 0

    def ids(self, folder: Path | None) -> set[int]:
        """All outputs; FileNotFoundError: a segment was merged since."""
        sealed: set[int] = set()
        for record in self.segments:
            assert folder is not None
            if not (folder / record.name).exists():
                raise FileNotFoundError(record.name)
            sealed |= set(Segment(folder / record.name, ()).outputs())
        return (sealed | set(self.hot)) - self.dead

    def live_texts(self) -> dict[str, list[int]]:
        """Output tokens of the live sessions."""
        return {key: [text[at] for at in sorted(text)] for key, text in self.live.items() if text}


class Mirror:
    """What the replies of a stream say, applied."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.refused: dict[str, SuffixError] = {}
        self.position: LogPosition | None = None
        self.kinds: list[tuple[str, str]] = []

    def apply(self, reply: pb.WatchReply) -> None:
        kind = reply.WhichOneof("reply")
        assert kind is not None
        message = getattr(reply, kind)
        self.kinds.append((kind, getattr(message, "namespace", "")))
        match kind:
            case "contents":
                before = self.held.get(message.namespace, Held())
                held = self.held[message.namespace] = Held(
                    message.generation, message.tokenizer, contents=before.contents + 1
                )
                self._seal(held, message.sealed)
            case "outputs":
                held = self.held[message.namespace]
                assert not held.complete
                self._add(held, message)
                held.complete = message.last
            case "changes":
                for each in message.namespaces:
                    held = self.held[each.namespace]
                    self._add(held, each)
                    for deletion in each.deletions:
                        if deletion.output_id:
                            held.dead.add(deletion.output_id)
                        else:
                            held.hot, held.segments = {}, ()
                self.position = position_from_proto(message.position)
            case "sealed":
                self._seal(self.held[message.namespace], message)
            case "live":
                self._live(message)
            case "refused":
                self.held.pop(message.namespace, None)
                self.refused[message.namespace] = wire.error_from_detail(message.error)

    def _add(self, held: Held, message: pb.HotOutputs | pb.NamespaceChanges) -> None:
        for each in message.outputs:
            stored = output_from_proto(message.namespace, each)
            tokens = tuple(stored.output.token_ids.tolist())
            assert held.hot.get(stored.output_id, tokens) == tokens
            held.hot[stored.output_id] = tokens

    def _seal(self, held: Held, message: pb.SealedContents) -> None:
        sealed, _digests = sealed_from_proto(message)
        held.segments = sealed.segments
        held.dead |= set(unpack_ids(message.deleted, "deleted"))

    def _live(self, message: pb.LiveText) -> None:
        held = self.held[message.namespace]
        assert held.complete
        if message.reset:
            held.resets += 1
            held.live = {}
        for piece in message.pieces:
            if piece.ended:
                held.live.pop(piece.session_id)
                held.ended.append((piece.session_id, frozenset(held.hot)))
                continue
            text = held.live.setdefault(piece.session_id, {})
            context, output = live_tokens(piece)
            assert len(context) <= 64
            at = piece.at + len(context)
            for place, token in enumerate(output.tolist(), at):
                assert place not in text, "text that was sent twice"
                text[place] = token


class LocalStream(Mirror):
    """A stream without gRPC and without threads of its own that reply: the test takes reply by reply."""

    def __init__(self, service: FollowerService) -> None:
        super().__init__()
        self._requests: queue.SimpleQueue[pb.WatchRequest] = queue.SimpleQueue()
        self._requests.put(hello())
        self._replies = service.watch(
            iter(self._requests.get, None), OPERATOR_CALLER, local=True, on_end=lambda _end: True
        )
        next(self._replies)
        [self._stream] = service._streams

    def follow(self, path: str) -> None:
        """Follow a namespace; returns when the service has the message."""
        self._requests.put(pb.WatchRequest(follow=pb.FollowNamespace(namespace=path)))
        eventually(lambda: path in self._stream._pending, "the message is read")

    def take(self, kind: str) -> None:
        """Apply the replies up to one of this kind."""
        while True:
            self.apply(pb.WatchReply.FromString(next(self._replies)))
            if self.kinds[-1][0] == kind:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._requests.put(pb.WatchRequest())  # ends the thread that reads


class WatchReader(WatchCall, Mirror):
    """Applies all replies in a thread of its own, and reports what it has applied."""

    def __init__(self, address: str, *requests: pb.WatchRequest, reports: bool = True) -> None:
        WatchCall.__init__(self, address, *(requests or (hello(),)))
        Mirror.__init__(self)
        self.reports = reports
        self.welcome = self.next().welcome
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for reply in self.call:
                self.apply(reply)
                if self.reports and self.position is not None and reply.HasField("changes"):
                    self.report(self.position)
        except grpc.RpcError as error:
            self.failure = error
        except BaseException as error:
            self.failure = error
            raise

    def close(self) -> None:
        super().close()
        self._thread.join()

    def until(self, holds: Callable[[], object], what: str) -> None:
        eventually(lambda: holds() or self.failure is not None, what)
        assert holds(), (what, self.failure)
