"""The direct socket: its framing, and misbehaving clients."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import LimitExceededError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX, GREETING, FrameBuffer, frame
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc_client.transport.direct import UnixTransport
from support.direct import call, opening, receive_reply
from support.serving import eventually, serving, socket_dir


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def server(folder: Path) -> Iterator[SuffixServer]:
    limits = Limits(max_message_bytes=4096)
    with SuffixCache() as cache, serving(cache, f"unix:{folder / 's'}", limits) as (server, _):
        yield server


# -- bytes


def test_the_bytes_of_frames() -> None:
    assert GREETING == b"suffixsvc direct 1\n"
    assert DIRECT_SUFFIX == ".direct"
    assert frame(b"abc") == b"\x03\x00\x00\x00abc"
    assert frame(b"") == b"\x00\x00\x00\x00"


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_restored_however_the_bytes_are_split(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    messages = [rng.bytes(int(rng.integers(0, 300))) for _ in range(40)]
    data = b"".join(map(frame, messages))
    buffer, found, at = FrameBuffer(300), [], 0
    while at < len(data):
        piece = int(rng.integers(1, 700))
        buffer.feed(data[at : at + piece])
        at += piece
        while (message := buffer.next()) is not None:
            found.append(message)
    assert found == messages
    buffer.feed(frame(b"x" * 301)[:5])
    with pytest.raises(LimitExceededError, match="at most 300 bytes; got 301"):
        buffer.next()


# -- misbehaving clients


def test_messages_may_be_split_anywhere(folder: Path, server: SuffixServer) -> None:
    with call(folder / "s") as caller:
        data = frame(opening(7).SerializeToString())
        for byte in data:
            caller.sendall(bytes([byte]))
        assert receive_reply(caller).id == 7
        caller.sendall(data * 30)
        assert [receive_reply(caller).id for _ in range(30)] == [7] * 30


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", LimitExceededError),
        (frame(b"\xff\xff\xff\xff"), SuffixError),
        (struct.pack("<I", 4097) + b"x" * 10_000, LimitExceededError),
    ],
)
def test_unreadable_bytes_end_their_connection_only(
    folder: Path, server: SuffixServer, said: bytes, code: type[SuffixError]
) -> None:
    with call(folder / "s") as bad, call(folder / "s") as good:
        bad.sendall(said)
        reply = receive_reply(bad)
        assert reply.id == 0
        assert isinstance(wire.error_from_detail(reply.error), code)
        assert bad.recv(1) == b""
        good.sendall(frame(opening(1).SerializeToString()))
        assert receive_reply(good).open.session_id


def test_clients_that_disconnect_release_their_slot(folder: Path) -> None:
    with SuffixCache() as cache:
        server = SuffixServer(cache, [parse_address(f"unix:{folder / 's'}")], max_streams=2)
        server.start()
        try:
            data = frame(opening(1).SerializeToString())
            for cut in range(len(data)):
                with _placed(folder) as caller:
                    caller.sendall(data[:cut])
        finally:
            server.drain()


def _placed(folder: Path) -> socket.socket:
    """Connections that ended may be counted for a moment."""
    callers: list[socket.socket] = []

    def greeted() -> bool:
        with suppress(AssertionError):
            callers.append(call(folder / "s"))
        return bool(callers)

    eventually(greeted, "a connection is accepted")
    return callers[0]


def test_over_the_connection_limit_grpc_is_used(folder: Path) -> None:
    with SuffixCache() as cache:
        server = SuffixServer(cache, [parse_address(f"unix:{folder / 's'}")], max_streams=1)
        server.start()
        try:
            with call(folder / "s"):
                first, second = (UnixTransport(f"unix:{folder / 's'}") for _ in range(2))
                assert first.exchange([opening(0)], 20.0)[0].open.session_id
                with pytest.raises(LimitExceededError, match="streams must be at most 1"):
                    second.exchange([opening(0)], 20.0)
                first.close()
                second.close()
        finally:
            server.drain()


def test_a_client_that_never_reads_does_not_block_shutdown(folder: Path) -> None:
    """Its answers fill the socket; the server stops all the same."""
    with SuffixCache() as cache:
        server = SuffixServer(cache, [parse_address(f"unix:{folder / 's'}")])
        server.start()
        with call(folder / "s") as deaf:
            deaf.settimeout(0.2)
            data = frame(opening(1).SerializeToString()) * 50
            with pytest.raises(TimeoutError):
                deaf.sendall(data * 100_000)
            server.drain()
    assert os.listdir(folder) == []


def test_stopping_while_clients_connect_and_disconnect(folder: Path) -> None:
    """A connection may begin or end at any moment of the shutdown."""
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
                caller.connect(str(folder / "s") + DIRECT_SUFFIX)

    callers = [threading.Thread(target=come_and_go) for _ in range(6)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(40):
            with SuffixCache() as cache:
                server = SuffixServer(cache, [parse_address(f"unix:{folder / 's'}")])
                server.start()
                time.sleep(0.02)
                server.drain()
                assert not (folder / f"s{DIRECT_SUFFIX}").exists()
    finally:
        stop.set()
        for caller in callers:
            caller.join(20)
