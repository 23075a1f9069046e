"""Internals of the client's transports, for tests that break or inspect them."""

from __future__ import annotations

import threading
from typing import Any

from suffixsvc_client import SuffixClient

__all__ = [
    "background_threads",
    "channels_of",
    "current_channel",
    "stream_of",
    "wait_on_stream",
    "waiting_procedures",
]


def background_threads() -> list[str]:
    """The background threads of this process's clients."""
    return [thread.name for thread in threading.enumerate() if thread.name == "suffixsvc-background"]


def channels_of(transport: Any) -> Any:
    """The channels of a transport over gRPC."""
    return transport._channels


def current_channel(transport: Any) -> Any:
    """The current channel of a transport over gRPC; None before its first call."""
    return channels_of(transport)._current


def stream_of(transport: Any) -> Any:
    """The current stream of a transport over gRPC."""
    return transport._stream


def wait_on_stream(transport: Any, number: int, answers: Any) -> None:
    """Register a queue for the answer to a message that is not sent."""
    transport._stream._waiting[number] = answers


def waiting_procedures(client: SuffixClient) -> int:
    """Number of procedures that wait for the client's background thread."""
    return client.runner.background._queue.qsize()
