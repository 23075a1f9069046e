"""More connections than the process has files for: new ones are refused, the others are served."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from suffixsvc_openai.app.http import connections, listener
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_process import process_of
from support.openai_serving import settings_of
from support.serving import PATIENCE_S, eventually
from support.tls_files import TlsFiles

FILES = 256
ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer to a request; 0 if the connection was closed."""
    received = b""
    try:
        client.sendall(ASK)
        while not received.endswith(b"}"):
            part = client.recv(1 << 16)
            if not part:
                return 0, {}
            received += part
    except (ConnectionResetError, BrokenPipeError):
        return 0, {}
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_connection_beyond_the_limit_is_told_so_and_the_others_go_on(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    state = server._uvicorn.server_state
    with connect(server.address) as first, connect(server.address) as second:
        eventually(lambda: len(state.connections) == 2, "two are connected")
        answered = httpx.get(f"http://{server.address}/health")
        assert answered.status_code == 503
        assert answered.headers["retry-after"]
        error = answered.json()["error"]
        assert (error["code"], error["type"]) == ("too_many_connections", "server_error")
        assert "at most 2" in error["message"]
        assert answer(first)[0] == answer(second)[0] == answer(first)[0] == 200
        second.close()
        eventually(lambda: len(state.connections) == 1, "one has gone")
        with connect(server.address) as third:
            assert answer(third)[0] == 200


def test_refused_connections_do_not_fill_the_log(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server._socket, "_next_warning", 0.0)
    state = server._uvicorn.server_state
    eventually(lambda: not state.connections, "no other test is connected")
    with capture_logs() as lines, connect(server.address):
        for _ in range(20):
            refused = httpx.get(f"http://{server.address}/health")
            assert refused.status_code == 503
            assert refused.headers["x-request-id"]
    warnings = [line for line in lines if line["event"] == "new connections are refused"]
    assert [line["remedy"] for line in warnings] == ["Bound connections by client in a proxy."]


def test_a_refused_connection_that_sends_nothing_ends(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(connections, "_REFUSED_SECONDS", 0.1)
    state = server._uvicorn.server_state
    eventually(lambda: not state.connections, "no other test is connected")
    with connect(server.address), connect(server.address) as refused:
        assert refused.recv(1) == b""


@pytest.fixture
def encrypted(cycle: Path, tmp_path: Path) -> Iterator[tuple[OpenAIServer, httpx.Client]]:
    files = TlsFiles(tmp_path / "tls")
    server = OpenAIServer(replace(settings_of(cycle), tls=files.server()))
    context = ssl.create_default_context(cafile=files.ca)
    with server, httpx.Client(verify=context, timeout=PATIENCE_S) as client:
        server.start()
        yield server, client


def test_handshakes_count_and_end_with_their_connection(
    encrypted: tuple[OpenAIServer, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client could hold any number of connections without a handshake."""
    server, client = encrypted
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    url = f"https://{server.address}/health"
    with connect(server.address) as first, connect(server.address) as second:
        second.sendall(b"\x16\x03\x01")  # the beginning of a TLS record
        eventually(lambda: server._socket.open == 2, "both are accepted")
        refused = client.get(url, headers={"Connection": "close"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        first.close()
        eventually(lambda: server._socket.open == 1, "one has gone")
        assert client.get(url, headers={"Connection": "close"}).status_code == 200
    eventually(lambda: server._socket.open == 0, "all have gone")


def test_many_handshakes_are_closed_at_once(
    encrypted: tuple[OpenAIServer, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = encrypted
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(listener, "_REFUSING", 3)
    with ExitStack() as opened:
        clients = [opened.enter_context(connect(server.address)) for _ in range(12)]
        for each in clients[-7:]:
            assert each.recv(1) == b""
        assert server._socket.open == 5


def test_a_handshake_that_is_not_completed_ends(
    encrypted: tuple[OpenAIServer, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = encrypted
    url = f"https://{server.address}/health"
    assert client.get(url).status_code == 200
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.2)
    for sent in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
        with connect(server.address) as stalled:
            stalled.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                while stalled.recv(1 << 10):  # an alert, if what was sent is no handshake
                    pass
    eventually(lambda: server._socket.open == 1, "their connections are closed")
    assert client.get(url).status_code == 200, "the connection whose handshake was complete goes on"


@pytest.mark.parametrize(
    ("files", "expected"),
    [(resource.RLIM_INFINITY, 4096), (1 << 20, 4096), (1024, 768), (256, 128), (64, 32), (1, 1)],
)
def test_files_are_left_for_the_rest(monkeypatch: pytest.MonkeyPatch, files: int, expected: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert listener.connection_limit() == expected


def test_four_hundred_connections_to_a_process_of_few_files(cycle: Path, tmp_path: Path) -> None:
    """Without a limit no file was left, and no connection was accepted until others ended."""
    with process_of(cycle, tmp_path, "--context", "256") as (process, address), ExitStack() as opened:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        process.send_signal(signal.SIGSTOP)  # all of them have arrived when it accepts the first
        clients = [opened.enter_context(connect(address)) for _ in range(400)]
        process.send_signal(signal.SIGCONT)
        found = [answer(each) for each in clients]
        statuses = [status for status, _ in found]
        assert statuses[:100] == [200] * 100
        assert set(statuses) <= {200, 503, 0}
        assert statuses.count(200) == FILES // 2
        refused = [body["error"]["code"] for status, body in found if status == 503]
        assert refused
        assert set(refused) == {"too_many_connections"}
        files = Path(f"/proc/{process.pid}/fd")
        assert len(list(files.iterdir())) < FILES
        assert answer(clients[0])[0] == 200, "a connection that was served goes on"
        for each in clients:
            each.close()
        eventually(lambda: httpx.get(f"http://{address}/health").status_code == 200, "there is room again")
        assert "out of system resource" not in (tmp_path / "log").read_text()
        assert process.poll() is None
