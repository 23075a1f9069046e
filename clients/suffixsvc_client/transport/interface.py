"""Transport interface: five operations. suffixsvc_client.testing has a fake for tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from suffixsvc import wire
from suffixsvc.errors import (
    InvalidConfigError,
    LimitExceededError,
    ProtocolError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.transport.identity import CallCredential, ClientIdentity, tls_remedy
from suffixsvc.transport.peer_credentials import ExpectedPeer, resolve_socket_paths
from suffixsvc.transport.user_tickets import UserTicket
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.effects import METHODS, Call, Method

M = TypeVar("M", bound=Message)

SERVICE: Final = "suffixsvc.v1.SuffixCache"
STREAM: Final = METHODS[pb.StreamRequest]

_START_REMEDY: Final = "Is it running, and is this its address? See: suffixsvc serve --help."
_TRUST_REMEDY: Final = (
    "Have the service listen in a folder that only its user can write to, or, if this is its user, set "
    "ClientConfig.service_uid."
)

CHANNEL_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # a restarted service is found within a second or two
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # despite its name, the timeout of one connection attempt: a busy service may answer late
    ("grpc.min_reconnect_backoff_ms", 20_000),
    # detects a peer that vanished
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # clients of the same address would otherwise share a connection and its failures
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]

#: time for a user ticket, where a stream is opened for messages without an answer
POST_SECONDS: Final = 0.05


class Transport(Protocol):
    """Blocking transport, thread-safe. Methods raise SuffixError only: ServiceError or a service's error."""

    @property
    def late_replies(self) -> int:
        """Number of replies that came after their timeout."""

    def call(self, call: Call) -> Any:
        """Call a method; its reply, or every reply of a stream to ``call.take``."""

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Send on the stream and wait for a reply to each; the transport numbers the messages."""

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Send on the stream; the replies are dropped."""

    def close(self) -> None:
        """Close all connections. Idempotent."""


class AsyncTransport(Protocol):
    """Asyncio transport; see :class:`Transport` for its methods."""

    @property
    def late_replies(self) -> int:
        """Number of replies that came after their timeout."""

    async def call(self, call: Call) -> Any:
        """Call a method; its reply."""

    async def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Send on the stream and wait for a reply to each."""

    async def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Send on the stream; the replies are dropped."""

    async def close(self) -> None:
        """Close all connections. Idempotent."""


class Forks:
    """Number of forks between the first process that loaded this module and this one.

    A forked child inherits its parent's memory, but cannot use its connections and threads.

    Attributes:
        count: compared with an earlier one, says whether this process is a child of the one that read that.
        renewing: held while a child replaces what its parent made.
    """

    count = 0
    renewing = threading.RLock()  # a signal handler may close a client meanwhile

    @classmethod
    def record(cls) -> None:
        """Count a fork; called in the child."""
        cls.count += 1
        cls.renewing = threading.RLock()  # a thread of the parent may hold the other one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.record)


def service_peer(service_uid: int | None) -> ExpectedPeer:
    """The listener expected at a client's target; ``service_uid`` as in ``ClientConfig``."""
    return ExpectedPeer("the service", _START_REMEDY, _TRUST_REMEDY, service_uid)


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message. Raises ProtocolError; gRPC itself would hide the failure or its reason."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ProtocolError(
            "a reply cannot be parsed",
            expected=f"a {kind.__name__}",
            got=f"{len(data)} bytes: {data[:16].hex()}",
        ) from None


def multicallable(channel: Any, method: Method) -> Any:
    """gRPC's callable of a method; its replies stay bytes, see :func:`parse`."""
    path, serialize = f"/{SERVICE}/{method.name}", method.request.SerializeToString
    return getattr(channel, method.kind)(path, request_serializer=serialize, response_deserializer=None)


def credential_of(
    identity: ClientIdentity, ticket: UserTicket | None, timeout_s: float = 1.0
) -> CallCredential:
    """What a call presents, as :meth:`ClientIdentity.credential`.

    Raises:
        ServiceUnavailableError: the token cannot be read now.
    """
    try:
        return identity.credential(ticket, timeout_s)
    except InvalidConfigError as error:
        remedy = "Correct the file: it is read again for every call."
        raise ServiceUnavailableError("the call was not sent", got=str(error), remedy=remedy) from None


def start_call(channel: Any, call: Call, credential: CallCredential, timeout_s: float) -> Any:
    """Begin a call."""
    request = call.request if isinstance(call.request, Message) else iter(call.request)
    return multicallable(channel, call.method)(request, timeout=timeout_s, metadata=credential.metadata)


def timed_out(timeout_s: float) -> ServiceTimeoutError:
    """The error for an answer that has not come in time."""
    return ServiceTimeoutError(
        "the service did not answer in time", expected=f"an answer within {timeout_s} s"
    )


def client_closed(got: object = None) -> ServiceUnavailableError:
    """The error for a call of a closed client."""
    return ServiceUnavailableError("the client is closed", got=got, remedy="Make a new client.")


def error_from_rpc(error: grpc.RpcError | grpc.Call) -> SuffixError:
    """The error of a failed call: from the service's ErrorDetail if it sent one, else from the status."""
    code = error.code() if hasattr(error, "code") else None
    details = resolve_socket_paths(str(error.details() if hasattr(error, "details") else error))[:300]
    metadata: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    try:
        sent = wire.error_from_metadata(metadata or ())
    except DecodeError:
        return ProtocolError("an error of the service cannot be parsed", got=details)
    if sent is not None:
        return sent
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceTimeoutError("the service did not answer in time", got=details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return LimitExceededError("a message exceeds a limit of the service", got=details)
        case grpc.StatusCode.UNIMPLEMENTED | grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN:
            return ProtocolError("the server does not implement the protocol", got=f"{code.name}: {details}")
    cancelled = code is grpc.StatusCode.CANCELLED
    return ServiceUnavailableError(
        "the call was cancelled" if cancelled else "the service cannot be reached",
        got=f"{code.name if code else 'no status'}: {details}",
        remedy="Call again. A service cancels calls when it stops, and exports that are not read."
        if cancelled
        else tls_remedy(details) or _START_REMEDY,
    )
