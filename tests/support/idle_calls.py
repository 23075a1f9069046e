"""Calls that are opened and send nothing."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from suffixsvc.v1 import suffix_cache_pb2_grpc

__all__ = ["SERVICE", "IdleCalls", "add_outputs", "connection", "reflection", "silent_unary"]

SERVICE = "/suffixsvc.v1.SuffixCache"


def connection(address: str) -> grpc.Channel:
    """A channel with a separate connection: gRPC shares connections by default."""
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


class IdleCalls:
    """``number`` calls, over six connections, that are opened and send nothing."""

    def __init__(
        self, address: str, number: int, begin: Callable[[grpc.Channel, Iterator[Any]], Any]
    ) -> None:
        self._silence: list[queue.SimpleQueue[None]] = [queue.SimpleQueue() for _ in range(number)]
        self._channels = [connection(address) for _ in range(6)]
        self.calls = [
            begin(self._channels[i % 6], iter(silence.get, None)) for i, silence in enumerate(self._silence)
        ]

    def ended(self) -> list[Any]:
        """The calls that have ended."""
        return [call for call in self.calls if call.done()]

    def __enter__(self) -> IdleCalls:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self.calls:
            call.cancel()
        for silence in self._silence:
            silence.put(None)
        for channel in self._channels:
            channel.close()


def add_outputs(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
    """Begin a call of AddOutputs."""
    return suffix_cache_pb2_grpc.SuffixCacheStub(channel).AddOutputs.future(requests)


def reflection(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
    """Begin a reflection call."""
    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests)


def silent_unary(method: str) -> Callable[[grpc.Channel, Iterator[Any]], Any]:
    """Function that begins a call of one request and never sends it."""

    def begin(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
        return channel.stream_unary(method).future(requests)

    return begin
