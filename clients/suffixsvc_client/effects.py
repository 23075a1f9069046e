"""What a procedure asks its client to do: it yields these and is sent the answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = [
    "Background",
    "Download",
    "Effect",
    "Exchange",
    "Method",
    "Pause",
    "Post",
    "Procedure",
    "Unary",
    "Upload",
]

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, R]):
    """One method of suffixsvc.v1.SuffixCache, by name, with the types it takes and gives."""

    name: str
    request: type[Q]
    reply: type[R]


OPEN: Final = Method("OpenSession", pb.OpenSessionRequest, pb.OpenSessionReply)
STEP: Final = Method("Step", pb.StepRequest, pb.StepReply)
APPEND: Final = Method("AppendContext", pb.AppendContextRequest, pb.AppendContextReply)
CLOSE: Final = Method("CloseSession", pb.CloseSessionRequest, pb.CloseSessionReply)
ADD_OUTPUTS: Final = Method("AddOutputs", pb.AddOutputsRequest, pb.AddOutputsReply)
EXPORT: Final = Method("ExportNgrams", pb.ExportNgramsRequest, pb.ExportNgramsReply)
DELETE_NAMESPACE: Final = Method("DeleteNamespace", pb.DeleteNamespaceRequest, pb.DeleteNamespaceReply)
FORGET: Final = Method("Forget", pb.ForgetRequest, pb.ForgetReply)
NAMESPACES: Final = Method("ListNamespaces", pb.ListNamespacesRequest, pb.ListNamespacesReply)
STATS: Final = Method("GetStats", pb.GetStatsRequest, pb.GetStatsReply)
SERVER_INFO: Final = Method("GetServerInfo", pb.GetServerInfoRequest, pb.GetServerInfoReply)


@dataclass(frozen=True, slots=True)
class Unary:
    """Call ``method``; answered with its reply, or a SuffixError thrown in."""

    method: Method[Any, Any]
    request: Message
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Upload:
    """Call a client-streaming method with these requests; answered as :class:`Unary`."""

    method: Method[Any, Any]
    requests: Sequence[Message]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Download:
    """Call a server-streaming method; every reply goes to ``take``, nothing is answered."""

    method: Method[Any, Any]
    request: Message
    take: Callable[[Any], None]
    timeout_s: float


class Exchange(NamedTuple):
    """Send messages on the long-lived stream; answered with as many replies, or a SuffixError thrown in."""

    requests: list[pb.StreamRequest]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Post:
    """Send messages on the stream and go on; nobody waits for the replies."""

    requests: list[pb.StreamRequest]


@dataclass(frozen=True, slots=True)
class Background:
    """Run another procedure off the caller's path; its errors are its own."""

    procedure: Procedure[None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Come back after a while."""

    seconds: float


Effect = Unary | Upload | Download | Exchange | Post | Background | Pause
Procedure = Generator[Effect, Any, T]
