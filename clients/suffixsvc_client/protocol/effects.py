"""Effects: the I/O operations that a procedure yields, and whose results it receives."""

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
    """One method of suffixsvc.v1.SuffixCache: its name, request type and reply type."""

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
    """Call ``method``; the result is its reply, or a SuffixError is raised in the procedure."""

    method: Method[Any, Any]
    request: Message
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Upload:
    """Call a client-streaming method with these requests; the result is as for :class:`Unary`."""

    method: Method[Any, Any]
    requests: Sequence[Message]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Download:
    """Call a server-streaming method; every reply is passed to ``take``; there is no result."""

    method: Method[Any, Any]
    request: Message
    take: Callable[[Any], None]
    timeout_s: float


class Exchange(NamedTuple):
    """Send messages on the long-lived stream; the result is a reply to each, or a SuffixError is raised."""

    requests: list[pb.StreamRequest]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Post:
    """Send messages on the stream without waiting for the replies."""

    requests: list[pb.StreamRequest]


@dataclass(frozen=True, slots=True)
class Background:
    """Run another procedure in the background; its errors do not reach this one."""

    procedure: Procedure[None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep."""

    seconds: float


Effect = Unary | Upload | Download | Exchange | Post | Background | Pause
Procedure = Generator[Effect, Any, T]
