"""Hostile clients of gRPC servers: malformed messages, malformed frames, floods, and silence.

Each attack takes a target and a number of messages, and returns how many it sent. ``held`` are attacks that
last as long as a block.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from suffixsvc.errors import StoreError
from suffixsvc_client.transport.interface import error_from_rpc
from support import http2_frames as h2
from support.idle_calls import IdleCalls, connection
from support.message_mutations import change, damaged

__all__ = ["ATTACKS", "Target", "held"]

#: calls that one attack has in flight
_WINDOW: Final = 32
#: messages of one call of a streaming method
_PER_STREAM: Final = 16
#: a call that takes longer hangs
_CALL_SECONDS: Final = 60.0
#: calls that last until their client ends them, and for how long they are read
_LASTING: Final = "Watch"
_LASTING_SECONDS: Final = 0.5
#: a ClientHello of TLS 1.2 that ends too early
_TLS: Final = bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 90
#: seconds that a raw connection waits for what the server says
_TAKE_SECONDS: Final = 0.02


@dataclass
class Target:
    """A gRPC server under attack.

    Attributes:
        address: HOST:PORT.
        methods: its methods.
        seeds: valid requests by the name of a method, which are mutated; others begin with an empty message.
        forbidden: requests that must not be sent, although they are allowed.
        codes: statuses of the calls so far, by method.
        defects: what no server may answer.
    """

    address: str
    methods: tuple[MethodDescriptor, ...]
    seeds: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)
    forbidden: Callable[[Message], bool] = lambda _message: False
    choice: random.Random = field(default_factory=lambda: random.Random(1))
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def path(self, method: MethodDescriptor) -> str:
        """The path of a method in a call."""
        return f"/{method.containing_service.full_name}/{method.name}"

    def seeds_of(self, method: MethodDescriptor) -> tuple[Message, ...]:
        """Valid requests of a method; health and the service have methods of the same name."""
        kind = method.input_type.full_name
        return tuple(each for each in self.seeds.get(method.name, ()) if each.DESCRIPTOR.full_name == kind)

    def request(self, method: MethodDescriptor) -> bytes:
        """A malformed request of a method: of wrong fields, or of wrong bytes."""
        kind = message_factory.GetMessageClass(method.input_type)
        while True:
            message = kind()
            if seeds := self.seeds_of(method):
                message.CopyFrom(self.choice.choice(seeds))
            for _ in range(self.choice.choice((0, 1, 2, 4, 8))):
                change(message, self.choice, lambda old: damaged(old, self.choice))
            data = message.SerializeToString()
            if self.choice.random() < 0.4:
                data = damaged(data, self.choice)
            with contextlib.suppress(Exception):
                message.ParseFromString(data)
            if not self.forbidden(message):
                return data

    def ended(self, method: MethodDescriptor, call: Any) -> None:
        """Record how a call ended."""
        code = call.code()
        self.codes[method.name, code.name] += 1
        hangs = code is grpc.StatusCode.DEADLINE_EXCEEDED and method.name != _LASTING
        # a failing store is INTERNAL, too, and so is a namespace that another call is deleting
        failed = code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
        if hangs or (failed and not isinstance(error_from_rpc(call), StoreError)):
            self.defects.append(f"{method.name}: {code.name}: {call.details()}"[:300])


# ------------------------------------------------------------------------------------------ messages


def unary_messages(target: Target, count: int) -> int:
    """Malformed requests of all methods that take one, several calls at a time."""
    return _calls(target, count, [each for each in target.methods if not each.client_streaming], 1)


def stream_messages(target: Target, count: int) -> int:
    """Malformed requests of all methods that take a stream, several in each call."""
    return _calls(target, count, [each for each in target.methods if each.client_streaming], _PER_STREAM)


def _calls(target: Target, count: int, methods: list[MethodDescriptor], each: int) -> int:
    sent, pending = 0, list[tuple[MethodDescriptor, Any]]()
    with connection(target.address) as channel:
        while sent < count:
            method = target.choice.choice(methods)
            requests = [target.request(method) for _ in range(target.choice.randint(1, each))]
            begin: Any = channel.stream_stream(target.path(method))
            seconds = _LASTING_SECONDS if method.name == _LASTING else _CALL_SECONDS
            pending.append((method, begin(iter(requests), timeout=seconds)))
            sent += len(requests)
            if len(pending) == _WINDOW:
                _end(target, pending)
        _end(target, pending)
    return sent


def _end(target: Target, pending: list[tuple[MethodDescriptor, Any]]) -> None:
    for method, call in pending:
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                pass
        target.ended(method, call)
    pending.clear()


# -------------------------------------------------------------------------------------------- frames


def frames(target: Target, count: int) -> int:
    """Connections of malformed HTTP/2 frames, closed in one way or another."""
    sent = 0
    while sent < count:
        choice = target.choice
        path = target.path(choice.choice(target.methods)).encode()
        parts = h2.noise_frames(choice, choice.randint(1, 20), path)
        with h2.Raw(target.port) as raw:
            raw.send(h2.PREFACE, h2.settings(), *parts)
            raw.take(_TAKE_SECONDS)
            raw.close(reset=choice.random() < 0.3)
        sent += len(parts)
    return sent


def broken_openings(target: Target, count: int) -> int:
    """Connections that send half a preface, TLS, HTTP/1.1, noise or nothing."""
    for _ in range(count):
        choice = target.choice
        opening = choice.choice(
            (
                b"",
                h2.PREFACE[: choice.randrange(1, len(h2.PREFACE))],
                h2.PREFACE,
                h2.PREFACE + h2.settings()[: choice.randrange(9)],
                _TLS,
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n",
                choice.randbytes(choice.choice((1, 24, 4000))),
            )
        )
        with h2.Raw(target.port) as raw:
            raw.send(opening)
            if choice.random() < 0.1:
                raw.take(_TAKE_SECONDS)
            raw.close(reset=choice.random() < 0.5)
    return count


def _on_one_connection(target: Target, count: int, each: int, make: Callable[[int], bytes]) -> int:
    """Send frames on connections, ``each`` on one or until the server closes it, and read what it says."""
    sent = 0
    while sent < count:
        with h2.Raw(target.port) as raw:
            raw.send(h2.PREFACE, h2.settings())
            for first in range(0, min(each, count - sent), 100):
                if not raw.send(*(make(first + number) for number in range(100))):
                    break
                sent += 100
                raw.take(0.0)
            else:
                raw.take(_TAKE_SECONDS)
            sent += 1  # a connection that is refused counts, so that this ends
    return sent


def resets(target: Target, count: int) -> int:
    """Calls that are begun and reset at once."""
    path = target.path(target.methods[0]).encode()
    block = h2.call_headers(path)

    def begin_and_reset(number: int) -> bytes:
        stream = 2 * number + 1
        headers = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)
        return headers + h2.frame(h2.RST_STREAM, 0, stream, b"\0\0\0\x08")

    return _on_one_connection(target, count, 1000, begin_and_reset)


def pings_and_settings(target: Target, count: int) -> int:
    """Frames that ask for an answer each, and those of no effect."""
    kinds = (
        h2.frame(h2.PING, 0, 0, b"12345678"),
        h2.settings(i3=100),
        h2.frame(h2.DATA, 0, 0x7FFFFFFF, b""),
        h2.frame(h2.PRIORITY, 0, 1, b"\0\0\0\0\x10"),
        h2.frame(0x42, 0, 0, b"extension"),
    )
    kind = target.choice.choice(kinds)
    return _on_one_connection(target, count, 2000, lambda _number: kind)


def header_bombs(target: Target, count: int) -> int:
    """Header blocks of many CONTINUATION frames, and of many fields."""
    path = target.path(target.methods[0]).encode()
    large = h2.field(b"x" * 100, b"y" * 10_000)

    def part(number: int) -> bytes:
        if number == 0:
            return h2.frame(h2.HEADERS, 0, 1, h2.call_headers(path))
        return h2.frame(h2.CONTINUATION, 0, 1, large)

    return _on_one_connection(target, count, 500, part)


ATTACKS: Final[tuple[tuple[Callable[[Target, int], int], float], ...]] = (
    (unary_messages, 0.3),
    (stream_messages, 0.3),
    (frames, 0.15),
    (broken_openings, 0.05),
    (resets, 0.1),
    (pings_and_settings, 0.05),
    (header_bombs, 0.05),
)


# ------------------------------------------------------------------------------------------- silence


def _reads_nothing(target: Target, method: MethodDescriptor, calls: int) -> h2.Raw:
    """A connection whose calls are answered, and that reads nothing: its window is closed."""
    raw = h2.Raw(target.port, window=1024)
    raw.send(h2.PREFACE, h2.settings(i4=0))
    block = h2.call_headers(target.path(method).encode())
    body = b"".join(h2.grpc_message(each.SerializeToString()) for each in target.seeds_of(method))
    for number in range(calls):
        stream = 2 * number + 1
        flags = 0 if method.client_streaming else h2.END_STREAM
        raw.send(
            h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block),
            h2.frame(h2.DATA, flags, stream, body),
        )
    return raw


@contextlib.contextmanager
def held(target: Target, idle: int) -> Iterator[None]:
    """For the block: streams and connections that say nothing, and clients that read nothing.

    Args:
        idle: streams; a quarter as many connections.
    """
    with contextlib.ExitStack() as stack:
        for method in target.methods:
            if method.client_streaming and method.server_streaming:
                begin = _silent(target.path(method))
                stack.enter_context(IdleCalls(target.address, idle, begin))
            if method.server_streaming:
                stack.enter_context(_reads_nothing(target, method, 4))
        for opening in (b"", h2.PREFACE[:7], h2.PREFACE + h2.settings(), _TLS[:20]):
            for _ in range(idle // 16):
                raw = stack.enter_context(h2.Raw(target.port))
                raw.send(opening)
        time.sleep(0.2)
        yield


def _silent(path: str) -> Callable[[grpc.Channel, Iterator[Any]], Any]:
    def begin(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
        call: Any = channel.stream_stream(path)
        return call(requests)

    return begin
