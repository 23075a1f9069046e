"""One call of Watch: requests are queued, replies are iterated over."""

from __future__ import annotations

import functools
import queue
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from suffixsvc.errors import ServiceUnavailableError, UnsupportedVersionError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.transport.channels import Channels, close_channel
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.v1 import watch_pb2
from suffixsvc_client import ClientConfig
from suffixsvc_client.protocol.effects import METHODS
from suffixsvc_client.transport.grpc_sync import connect
from suffixsvc_client.transport.interface import (
    error_from_rpc,
    multicallable,
    parse,
    service_peer,
)

#: at most this many requests wait to be sent: a service that does not read them is not alive
_MAX_QUEUED = 65536


class WatchChannel(ClosedOnExit):
    """The connection of a follower to its service. Thread-safe.

    Args:
        target: ``unix:PATH`` or ``HOST:PORT``.
        config: whose ``service_uid`` and ``identity`` apply.

    Raises:
        InvalidConfigError: ``target`` is not an address.
    """

    def __init__(self, target: str, config: ClientConfig) -> None:
        self._identity = config.chosen_identity
        self._identity.check(target)
        self._channels: Channels[grpc.Channel] = Channels(
            target,
            service_peer(config.service_uid),
            functools.partial(connect, self._identity),
            close_channel,
        )

    def watch(self) -> WatchCall:
        """Begin a call of Watch. ServiceUnavailableError: no process listens, or the channel is closed."""
        return WatchCall(self._channels, self._identity)

    def fetch(self, namespace: str, name: str, offset: int) -> Iterable[bytes]:
        """The bytes of a segment file from an offset on. SuffixError: it cannot be fetched."""
        request = watch_pb2.FetchSegmentRequest(namespace=namespace, name=name, offset=offset)
        method = METHODS[watch_pb2.FetchSegmentRequest]
        with self._channels.use() as held:
            for last in (False, True):
                credential = self._identity.credential(held.ticket)
                call = multicallable(held.channel, method)(request, metadata=credential.metadata)
                try:
                    for data in call:
                        yield parse(watch_pb2.FetchSegmentReply, data).data
                except grpc.RpcError as error:
                    found = error_from_rpc(error)
                    if last or not credential.may_retry(found):
                        raise found from None
                else:
                    return
                finally:
                    call.cancel()

    def close(self) -> None:
        """End all calls. Idempotent."""
        self._channels.close()


class WatchCall(ClosedOnExit):
    """One call of Watch; see :class:`WatchChannel`."""

    def __init__(self, channels: Channels[grpc.Channel], identity: ClientIdentity) -> None:
        self._channels = channels
        self._requests: queue.SimpleQueue[watch_pb2.WatchRequest | None] = queue.SimpleQueue()
        self._held = channels.acquire()
        try:
            begin = multicallable(self._held.channel, METHODS[watch_pb2.WatchRequest])
            self._credential = identity.credential(self._held.ticket)
            self._call: Any = begin(iter(self._requests.get, None), metadata=self._credential.metadata)
        except BaseException as error:
            channels.release(self._held)
            if isinstance(error, (RuntimeError, ValueError)):  # no thread; the channel was closed
                raise ServiceUnavailableError("no stream to the service can be opened", got=error) from None
            raise
        self._released = False

    def send(self, request: watch_pb2.WatchRequest) -> None:
        """Queue a request. It is dropped if the call has ended, or the service does not read."""
        if self._requests.qsize() < _MAX_QUEUED:
            self._requests.put(request)
        else:
            self.cancel()

    def replies(self) -> Iterator[watch_pb2.WatchReply]:
        """The replies, until the call ends. SuffixError: why it ended."""
        try:
            for data in self._call:
                yield parse(watch_pb2.WatchReply, data)
        except grpc.RpcError as error:
            if self._call.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise UnsupportedVersionError(
                    "the service must have Watch, to be followed",
                    got=str(self._call.details())[:200],
                    remedy='Upgrade the service, or connect with mode="remote".',
                ) from None
            found = error_from_rpc(error)
            if self._credential.may_retry(found):  # no refusal: the next call presents another ticket
                raise ServiceUnavailableError("the user ticket must be renewed", got=found) from None
            raise found from None

    def finish(self) -> None:
        """Send nothing more: the service ends the call when it has read everything."""
        self._requests.put(None)

    def cancel(self) -> None:
        """End the call; :meth:`replies` raises. Any thread."""
        self._call.cancel()

    def close(self) -> None:
        """End the call and release its connection. Idempotent."""
        self._requests.put(None)
        self._call.cancel()
        if not self._released:
            self._released = True
            self._channels.release(self._held)
