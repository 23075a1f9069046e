"""A raw client of the direct socket, which sends and receives bytes."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from suffixsvc.frames import DIRECT_SUFFIX, GREETING
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["call", "opening", "receive_reply"]


def call(path: Path) -> socket.socket:
    """Connect to the direct socket at ``path`` and read its greeting."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(20.0)
    caller.connect(str(path) + DIRECT_SUFFIX)
    assert receive(caller, len(GREETING)) == GREETING
    return caller


def receive(caller: socket.socket, count: int) -> bytes:
    """``count`` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < count and (more := caller.recv(count - len(data))):
        data += more
    return data


def receive_reply(caller: socket.socket) -> pb.StreamReply:
    """The next frame, parsed."""
    [length] = struct.unpack("<I", receive(caller, 4))
    return pb.StreamReply.FromString(receive(caller, length))


def opening(number: int, namespace: str = "a", prompt: bytes = b"\1\0\0\0") -> pb.StreamRequest:
    """Message ``number``: open a session."""
    request = pb.StreamRequest(id=number)
    request.open.namespace, request.open.prompt_token_ids = namespace, prompt
    return request
