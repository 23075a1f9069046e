"""Clients that send no request, or take nothing of an answer: their connections end, without a key."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc_openai.app.http import connections, streaming
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import ENDLESS, NO_DRAFTS, idle, send, settings_of
from support.serving import eventually

#: for all timers of the server: nothing here depends on them being this short
SECONDS = 0.5
#: log probabilities: the answer is larger than the buffers of the sockets
LARGE = {**ENDLESS, **NO_DRAFTS, "max_tokens": 1_500, "logprobs": 5}


@pytest.fixture
def server(cycle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setattr(connections, "HEADER_SECONDS", SECONDS)
    monkeypatch.setattr(streaming, "STALL_SECONDS", SECONDS)
    server = OpenAIServer(settings_of(cycle, context=1 << 14))
    with server:
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # connections inherit it
        server.start()
        yield server


def connect(server: OpenAIServer) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def no_connections(server: OpenAIServer) -> None:
    """Wait until the server has closed every socket: uvicorn forgets a connection when it is lost."""
    eventually(lambda: not server._uvicorn.server_state.connections, "every connection has ended")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: a\r\n"])
def test_a_connection_without_complete_headers_ends(server: OpenAIServer, sent: bytes) -> None:
    with connect(server) as client:
        client.sendall(sent)
        assert client.recv(1) == b""


def test_single_bytes_do_not_prolong_the_time_for_headers(server: OpenAIServer) -> None:
    def drip(client: socket.socket) -> None:
        for char in b"GET /health HTTP/1.1\r\nX: " + b"a" * 1000:
            client.send(bytes([char]))
            time.sleep(0.02)

    with connect(server) as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        drip(client)


def test_headers_of_a_second_request_must_arrive_in_time_too(server: OpenAIServer) -> None:
    """uvicorn's keep-alive timer ends with their first byte."""
    with connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"GET / HT")
        while client.recv(1 << 16):
            pass


def test_a_connection_outlasts_the_time_for_headers_in_and_between_requests(server: OpenAIServer) -> None:
    with connect(server) as client:
        for _ in range(2):
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\n")
            time.sleep(2 * SECONDS)  # its body
            client.sendall(b"x")
            received = b""
            while not received.endswith(b"}}"):
                part = client.recv(1 << 16)
                assert part, received
                received += part
            assert received.startswith(b"HTTP/1.1 400 ")
            time.sleep(2 * SECONDS)


def test_a_connection_that_is_reset_holds_nothing(server: OpenAIServer) -> None:
    """Regression: uvicorn's timer held each one, some kilobytes, for the time of an idle connection."""
    timers: list[asyncio.TimerHandle] = []

    def begun() -> bool:
        return all(each.timeout_keep_alive_task for each in server._uvicorn.server_state.connections)

    for _ in range(10):
        with connect(server) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            eventually(begun, "the response is complete")
            timers += [each.timeout_keep_alive_task for each in server._uvicorn.server_state.connections]
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        no_connections(server)
    assert len(timers) == 10
    eventually(lambda: all(timer.cancelled() for timer in timers), "they wait for nothing")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_reads_is_disconnected(server: OpenAIServer, stream: bool) -> None:
    """The server had closed its side, but waited for the client to take what was written."""
    with send(server, {**LARGE, "stream": stream}):
        eventually(lambda: server._uvicorn.server_state.connections, "it is connected")
        no_connections(server)
    idle(server)
