"""Somebody who speaks on a direct socket for himself, byte by byte."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from suffixsvc.frames import DIRECT_SUFFIX, GREETING
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["call", "hear_reply", "opening"]


def call(path: Path) -> socket.socket:
    """Somebody who speaks for himself; greeted already."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(20.0)
    caller.connect(str(path) + DIRECT_SUFFIX)
    assert hear(caller, len(GREETING)) == GREETING
    return caller


def hear(caller: socket.socket, count: int) -> bytes:
    heard = b""
    while len(heard) < count and (more := caller.recv(count - len(heard))):
        heard += more
    return heard


def hear_reply(caller: socket.socket) -> pb.StreamReply:
    [length] = struct.unpack("<I", hear(caller, 4))
    return pb.StreamReply.FromString(hear(caller, length))


def opening(number: int, namespace: str = "a", prompt: bytes = b"\1\0\0\0") -> pb.StreamRequest:
    request = pb.StreamRequest(id=number)
    request.open.namespace, request.open.prompt_token_ids = namespace, prompt
    return request
