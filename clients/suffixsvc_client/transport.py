"""The seam to the service: five ways to send, nothing else. A fake ships in suffixsvc_client.testing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from suffixsvc import wire
from suffixsvc.errors import (
    LimitExceededError,
    ProtocolError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.peers import ExpectedPeer, with_paths
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc_client.effects import Method

__all__ = [
    "CHANNEL_OPTIONS",
    "STREAM",
    "AsyncTransport",
    "Transport",
    "error_from_rpc",
    "parse",
    "path_of",
    "service_peer",
]

M = TypeVar("M", bound=Message)

SERVICE: Final = "suffixsvc.v1.SuffixCache"
STREAM: Final = Method("Stream", pb.StreamRequest, pb.StreamReply)

_START_REMEDY: Final = "Is it running, and is this its address? See: suffixsvc serve --help."
_TRUST_REMEDY: Final = (
    "Have the service listen in a folder that only its user can write to, or, if this is its user, set "
    "ClientConfig.service_uid."
)

CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # a service that comes back is found within a second or two
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # despite its name the time that one attempt to connect may take: a busy service needs some to answer it
    ("grpc.min_reconnect_backoff_ms", 20_000),
    # notices a peer that vanished without a word
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # a client that asks the same address twice shares a connection otherwise, and its failures too
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]


class Transport(Protocol):
    """Thread-safe. Every method raises SuffixError only: ServiceError or what the service said."""

    @property
    def late_replies(self) -> int:
        """Replies that came after their step had given up."""

    def unary(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any: ...

    def upload(self, method: Method[Any, Any], requests: Sequence[Message], timeout_s: float) -> Any: ...

    def download(
        self, method: Method[Any, Any], request: Message, take: Callable[[Any], None], timeout_s: float
    ) -> None:
        """Call a server-streaming method; every reply goes to ``take``."""

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Send on the stream and wait for a reply to each; the transport numbers the messages."""

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Send on the stream; the replies are dropped."""

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """The same, awaited."""

    late_replies: int

    async def unary(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any: ...

    async def upload(
        self, method: Method[Any, Any], requests: Sequence[Message], timeout_s: float
    ) -> Any: ...

    async def download(
        self, method: Method[Any, Any], request: Message, take: Callable[[Any], None], timeout_s: float
    ) -> None: ...

    async def exchange(
        self, requests: Sequence[pb.StreamRequest], timeout_s: float
    ) -> list[pb.StreamReply]: ...

    async def post(self, requests: Sequence[pb.StreamRequest]) -> None: ...

    async def close(self) -> None: ...


def service_peer(service_uid: int | None) -> ExpectedPeer:
    """What listens at a client's target. The user id: see :class:`~suffixsvc_client.ClientConfig`."""
    return ExpectedPeer("the service", _START_REMEDY, _TRUST_REMEDY, service_uid)


def parse(kind: type[M], data: bytes) -> M:
    """A message from its bytes. gRPC itself would swallow a failure or end the call without a reason."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ProtocolError(
            "an answer cannot be read",
            expected=f"a {kind.__name__}",
            got=f"{len(data)} bytes: {data[:16].hex()}",
        ) from None


def path_of(method: Method[Any, Any]) -> str:
    return f"/{SERVICE}/{method.name}"


def error_from_rpc(error: grpc.RpcError | grpc.Call) -> SuffixError:
    """What a failed call means: the service's own ErrorDetail where it sent one, else by status."""
    code = error.code() if hasattr(error, "code") else None
    details = with_paths(str(error.details() if hasattr(error, "details") else error))[:300]
    metadata: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in metadata or ():
        if key == wire.ERROR_METADATA_KEY:
            try:
                return wire.error_from_detail(types_pb2.ErrorDetail.FromString(value))
            except DecodeError:
                return ProtocolError("an error of the service cannot be read", got=details)
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceTimeoutError("the service did not answer in time", got=details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return LimitExceededError("a message is over a limit of the service", got=details)
        case grpc.StatusCode.UNIMPLEMENTED | grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return ProtocolError("the other side does not speak our protocol", got=f"{code.name}: {details}")
    cancelled = code is grpc.StatusCode.CANCELLED
    return ServiceUnavailableError(
        "the call was cancelled" if cancelled else "the service cannot be reached",
        got=f"{code.name if code else 'no status'}: {details}",
        remedy="Call again. A service ends calls when it stops, and exports that are not read."
        if cancelled
        else _START_REMEDY,
    )
