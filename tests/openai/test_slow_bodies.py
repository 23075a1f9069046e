"""Clients that send or read slowly, or send far too much: they are disconnected, and the server goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from suffixsvc_openai.app.http import bodies, streaming
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import ENDLESS, NO_DRAFTS, client_of, idle, running, settings_of
from support.serving import PATIENCE_S

MIB = 1 << 20


@pytest.fixture(scope="module")
def long(cycle: Path) -> Iterator[OpenAIServer]:
    with running(settings_of(cycle, context=1 << 15)) as server:
        yield server


@pytest.fixture(scope="module")
def small_buffer(cycle: Path) -> Iterator[OpenAIServer]:
    """A server whose system takes little of a response that is not read: that much less is generated."""
    server = OpenAIServer(settings_of(cycle, context=1 << 15))
    with server:
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # connections inherit it
        server.start()
        yield server


def connect(server: OpenAIServer, *, receive_buffer: int = 0) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    found = socket.socket()
    if receive_buffer:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    found.settimeout(60)
    found.connect((host, int(port)))
    return found


def head(server: OpenAIServer, length: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: {server.address}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def is_alive(server: OpenAIServer) -> None:
    with client_of(server) as client:
        answer = client.completions.create(model="cycle", prompt="a", max_tokens=4, temperature=0)
        assert answer.choices[0].text == "bcde"
    idle(server)


def test_a_client_that_reads_a_byte_at_a_time_is_disconnected(
    small_buffer: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes some data before every deadline, but not as much as one write of the server."""
    monkeypatch.setattr(streaming, "STALL_SECONDS", 1.0)
    # log probabilities fill the buffers of the sockets with fewer tokens
    body = {**ENDLESS, **NO_DRAFTS, "max_tokens": 30_000, "logprobs": 5, "stream": True}
    data = json.dumps(body).encode()
    with connect(small_buffer, receive_buffer=4096) as client:
        client.sendall(head(small_buffer, len(data)) + data)
        received = bytearray()
        end = time.monotonic() + PATIENCE_S
        while small_buffer.service.engine.unfinished or not received:
            received += client.recv(1)
            time.sleep(0.1)
            assert time.monotonic() < end, "it still holds its lane"
        assert len(received) < 1000
        with suppress(ConnectionResetError):
            while part := client.recv(1 << 16):
                received += part
        assert b"[DONE]" not in received
    is_alive(small_buffer)


def test_a_body_that_arrives_slowly_is_408(long: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)
    with connect(long) as client:
        client.sendall(head(long, 1000) + b'{"model": ')
        received = b""
        while b"request_timeout" not in received:
            part = client.recv(1 << 16)
            assert part, received
            received += part
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"the body must arrive within 0.5 seconds" in received
    is_alive(long)


def test_of_an_endless_body_a_limited_part_is_read(long: OpenAIServer) -> None:
    """The answer comes although the client goes on sending, and the connection is closed."""
    sent = 0

    def send_on(client: socket.socket) -> None:
        nonlocal sent
        with suppress(OSError):
            while True:
                sent += client.send(bytes(MIB))

    with connect(long) as client:
        client.sendall(head(long, 10**12))
        thread = threading.Thread(target=send_on, args=(client,))
        thread.start()
        received = b""
        with suppress(ConnectionResetError):
            while b"request_too_large" not in received and (part := client.recv(1 << 16)):
                received += part
        thread.join(60)
        assert not thread.is_alive(), "the server reads on"
    assert received.startswith(b"HTTP/1.1 413 ")
    assert 128 * MIB <= sent < 160 * MIB
    is_alive(long)
