"""Effects: the I/O operations that a procedure yields, and whose results it receives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf import message_factory
from google.protobuf.message import Message

from suffixsvc.v1 import suffix_cache_pb2 as pb

T = TypeVar("T")


class Method(NamedTuple):
    """One method of suffixsvc.v1.SuffixCache: its name, request type, reply type and gRPC's kind of it."""

    name: str
    request: type[Message]
    reply: type[Message]
    kind: str


def _methods() -> dict[type[Message], Method]:
    """The methods of the protocol by the type of their requests."""
    found = {}
    for each in pb.DESCRIPTOR.services_by_name["SuffixCache"].methods:
        request, reply = map(message_factory.GetMessageClass, (each.input_type, each.output_type))
        sides = ("stream" if many else "unary" for many in (each.client_streaming, each.server_streaming))
        found[request] = Method(each.name, request, reply, "_".join(sides))
    return found


METHODS: Final = _methods()


class Call(NamedTuple):
    """Call the method of a request; the result is its reply, or a SuffixError is raised in the procedure.

    Attributes:
        request: the requests, at least one, for a client-streaming method.
        take: receives every reply of a server-streaming method, which has no result.
    """

    request: Message | Sequence[Message]
    timeout_s: float
    take: Callable[[Any], None] | None = None

    @property
    def method(self) -> Method:
        """The method."""
        return METHODS[type(self.request if isinstance(self.request, Message) else self.request[0])]


class Exchange(NamedTuple):
    """Send messages on the long-lived stream; the result is a reply to each, or a SuffixError is raised."""

    requests: list[pb.StreamRequest]
    timeout_s: float


class Post(NamedTuple):
    """Send messages on the stream without waiting for the replies."""

    requests: list[pb.StreamRequest]


class Background(NamedTuple):
    """Run another procedure in the background; its errors do not reach this one."""

    procedure: Procedure[None]


class Pause(NamedTuple):
    """Sleep."""

    seconds: float


Effect = Call | Exchange | Post | Background | Pause
Procedure = Generator[Effect, Any, T]
