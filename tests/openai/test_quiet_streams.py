"""Streams with nothing to send yet: headers and comments tell proxies and clients that they are alive."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from suffixsvc_openai.app.http import streaming
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import ENDLESS, LANES, NO_DRAFTS, idle, running, send, settings_of
from support.serving import PATIENCE_S, eventually

QUEUED = {"model": "cycle", "prompt": "ab", "max_tokens": 4, "temperature": 0, "stream": True}
COMMENT = b": waiting\n\n"


@pytest.fixture
def server(cycle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setattr(streaming, "QUIET_SECONDS", 0.1)
    with running(settings_of(cycle, context=1 << 15)) as server:
        yield server


def occupy(server: OpenAIServer, stack: ExitStack) -> None:
    """Take every lane with an answer that ends with the stack."""
    for _ in range(LANES):
        stack.enter_context(send(server, {**ENDLESS, **NO_DRAFTS, "stream": True}))
    eventually(lambda: server.service.engine.load.running == LANES, "all lanes are busy")


def read_until(client: socket.socket, enough: bytes, times: int = 1) -> bytes:
    client.settimeout(PATIENCE_S)
    received = b""
    while received.count(enough) < times:
        part = client.recv(1 << 16)
        assert part, received
        received += part
    return received


def test_a_stream_that_waits_for_a_lane_has_comments_before_its_text(server: OpenAIServer) -> None:
    with ExitStack() as others, ExitStack() as stack:
        occupy(server, others)
        waiting = stack.enter_context(send(server, QUEUED))
        received = read_until(waiting, COMMENT, times=3)
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b"data:" not in received
        others.close()
        received = read_until(waiting, b"data: [DONE]")
        assert received.count(b'"text":"') >= 1
        assert b'"finish_reason":"length"' in received
    idle(server)


def test_an_error_after_comments_is_an_event(server: OpenAIServer) -> None:
    with ExitStack() as others:
        occupy(server, others)
        waiting = others.enter_context(send(server, QUEUED))
        read_until(waiting, COMMENT)
        server.service.engine.stop()
        assert b'data: {"error":{' in read_until(waiting, b"server_stopping")


def test_an_error_before_the_first_comment_has_a_status(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "QUIET_SECONDS", 2 * PATIENCE_S)
    with ExitStack() as others:
        occupy(server, others)
        waiting = others.enter_context(send(server, QUEUED))
        eventually(lambda: server.service.engine.load.waiting == 1, "it waits")
        server.service.engine.stop()
        assert read_until(waiting, b"server_stopping").startswith(b"HTTP/1.1 503 ")
