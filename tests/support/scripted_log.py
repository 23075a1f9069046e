"""A service over a real socket whose stream of the log is what a test says."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from suffixsvc import wire
from suffixsvc.log_wire import WATCH_PROTOCOL
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, watch_pb2
from support.hostile_service import HostileService

__all__ = ["BrokenOffError", "ScriptedLog", "changes", "contents", "output", "scripted_log"]

PATH = "acme/sql"


class BrokenOffError(Exception):
    """Raised by a script: the stream ends as that of a service that is gone."""


class ScriptedLog(HostileService):
    """Servicer. Sessions end as the protocol says, but not while ``hanging`` is set.

    Args: script: the replies of a stream after its welcome, by the number of the stream (0, 1, ...), once the
    follower has asked for a namespace. A stream stays open after them. welcome: the first reply.

    Attributes: hellos, follows: what the followers sent. reported: the LSN of the last report.
    """

    def __init__(
        self,
        script: Callable[[int], Iterable[watch_pb2.WatchReply]],
        welcome: watch_pb2.WatchWelcome | None = None,
    ) -> None:
        super().__init__(0, 1000)
        self._script = script
        self._welcome = welcome or watch_pb2.WatchWelcome(protocol=WATCH_PROTOCOL, lease_seconds=60)
        self.hellos: list[watch_pb2.WatchHello] = []
        self.follows: list[watch_pb2.FollowNamespace] = []
        self.reported = 0
        self.hanging = threading.Event()
        self.over = threading.Event()

    def Watch(
        self, request_iterator: Iterator[watch_pb2.WatchRequest], context: Any
    ) -> Iterator[watch_pb2.WatchReply]:
        number = len(self.hellos)
        self.hellos.append(next(request_iterator).hello)
        yield watch_pb2.WatchReply(welcome=self._welcome)
        self.follows.append(next(request_iterator).follow)
        ended = threading.Event()
        context.add_callback(ended.set)
        threading.Thread(target=self._read, args=(request_iterator,), daemon=True).start()
        try:
            yield from self._script(number)
        except BrokenOffError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        ended.wait()

    def _read(self, requests: Iterator[watch_pb2.WatchRequest]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for request in requests:
                if request.HasField("report"):
                    self.reported = request.report.applied.lsn

    def CloseSession(self, request: pb.CloseSessionRequest, context: Any) -> pb.CloseSessionReply:
        if self.hanging.is_set():
            self.over.wait()
        return pb.CloseSessionReply(session_id=request.session_id)


@contextmanager
def scripted_log(service: suffix_cache_pb2_grpc.SuffixCacheServicer) -> Iterator[str]:
    """Run the service; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(64), options=[("grpc.max_send_message_length", -1)])
    suffix_cache_pb2_grpc.add_SuffixCacheServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        if isinstance(service, ScriptedLog):
            service.over.set()
        server.stop(None).wait()


def output(output_id: int, tokens: Sequence[int], **changed: Any) -> watch_pb2.LoggedOutput:
    """A row of the log, correct but for what is changed."""
    fields = {
        "uuid": output_id.to_bytes(16, "little"),
        "token_ids": wire.pack_tokens(np.array(tokens, np.int32)),
    } | changed
    return watch_pb2.LoggedOutput(**{"output_id": output_id} | fields)


def contents(
    *outputs: watch_pb2.LoggedOutput, lsn: int = 1, last: bool = True, path: str = PATH
) -> list[watch_pb2.WatchReply]:
    """The contents of a namespace up to an LSN."""
    head = watch_pb2.NamespaceContents(
        namespace=path, generation=1, position=watch_pb2.LogPosition(node_id=1, lsn=lsn, run=1)
    )
    rows = watch_pb2.HotOutputs(namespace=path, outputs=outputs, last=last)
    return [watch_pb2.WatchReply(contents=head), watch_pb2.WatchReply(outputs=rows)]


def changes(*outputs: watch_pb2.LoggedOutput, lsn: int, path: str = PATH) -> watch_pb2.WatchReply:
    """Changes of a namespace up to an LSN."""
    of_path = watch_pb2.NamespaceChanges(namespace=path, outputs=outputs)
    position = watch_pb2.LogPosition(node_id=1, lsn=lsn, run=1)
    return watch_pb2.WatchReply(changes=watch_pb2.LogChanges(namespaces=[of_path], position=position))
