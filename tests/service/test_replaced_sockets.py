"""Sockets replaced after the client's check: a process of another user is sent nothing.

What happened: a client called while no process listened; the check passed, because gRPC would report that.
gRPC's channel then connected by itself, to a process of another user that had bound the path in the meantime.
That process removed its file, the service started, the next check found the service, and the call used the
channel that was already connected: the other process received the namespace and the prompt. Every later
connection of the channel was made after a check as well, so that a file replaced in between was enough.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.transport.identity import CallCredential
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.transport import grpc_aio, grpc_sync
from support.client_parts import channels_of
from support.other_uid_process import HTTP2_SETTINGS, other_uid_process_at
from support.serving import PATIENCE_S, Blocking, event_loop, eventually, serving, socket_dir

CONFIG = ClientConfig(step_timeout_s=300, open_timeout_s=300, call_timeout_s=30)
PROMPT = list(range(1000, 1010))
#: gRPC's longest pause between two connection attempts is 2 s
RECONNECT_SECONDS = 3.0

Clients = Callable[[str], contextlib.AbstractContextManager[Any]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder like /tmp: any user may create files, but not remove those of others."""
    with socket_dir() as folder:
        folder.chmod(0o1777)
        yield folder


@contextlib.contextmanager
def blocking(address: str) -> Iterator[Any]:
    with SuffixClient(address, CONFIG) as client:
        yield client


@contextlib.contextmanager
def asynchronous(address: str) -> Iterator[Any]:
    with event_loop() as loop:
        client = Blocking(AsyncSuffixClient(address, CONFIG), loop)
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def heard_nothing(log: Path) -> Iterator[None]:
    """Checked also if the block fails, which may be due to the other process."""
    try:
        yield
    finally:
        assert log.read_bytes() == b""


both = pytest.mark.parametrize("clients", [blocking, asynchronous])


@both
def test_a_process_of_another_user_that_binds_the_path_of_a_missing_service_is_sent_nothing(
    folder: Path, clients: Clients
) -> None:
    with clients(f"unix:{folder}/s") as client, SuffixCache() as cache:
        with pytest.raises(ServiceUnavailableError, match="cannot be reached") as caught:
            client.server_info()
        assert caught.value.remedy
        with other_uid_process_at(folder / "s", HTTP2_SETTINGS) as log:
            deadline = time.monotonic() + RECONNECT_SECONDS
            while not log.read_bytes() and time.monotonic() < deadline:
                time.sleep(0.01)
            (folder / "s").unlink()
            with serving(cache, f"unix:{folder}/s"), heard_nothing(log):
                session = client.namespace("secret").open_session(PROMPT)
                session.step([7])
                assert session.close() is not None
        assert cache.namespace("secret").stats().outputs == 1


@both
@pytest.mark.parametrize("restarted", [False, True])
def test_a_process_of_another_user_that_replaces_a_checked_socket_is_sent_nothing(
    folder: Path, clients: Clients, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced just after the check, before the first connection or before a reconnection by gRPC."""
    start_call = grpc_sync.start_call
    to_do: list[Callable[[], object]] = []

    def just_after_the_check(channel: Any, call: Call, credential: CallCredential, timeout_s: float) -> Any:
        while to_do:
            to_do.pop(0)()
        return start_call(channel, call, credential, timeout_s)

    for module in (grpc_sync, grpc_aio):
        monkeypatch.setattr(module, "start_call", just_after_the_check)
    with (
        SuffixCache() as cache,
        other_uid_process_at(folder / "t", HTTP2_SETTINGS) as log,
        serving(cache, f"unix:{folder}/s") as (server, address),
        clients(address) as client,
    ):
        if restarted:
            assert client.server_info().instance_id
            to_do.append(server.drain)
        to_do.append(lambda: os.rename(folder / "t", folder / "s"))
        with heard_nothing(log):
            if restarted:
                with pytest.raises(ServiceUnavailableError, match="cannot be reached") as caught:
                    client.namespace("secret").stats()
                assert f"{folder}/s" in str(caught.value.got)
            else:
                assert client.server_info().instance_id
            assert not to_do
        with heard_nothing(log), pytest.raises(ServiceUnavailableError, match="trusted user"):
            client.server_info()


@both
def test_a_restarted_service_is_found_at_once_and_no_file_leaks(folder: Path, clients: Clients) -> None:
    """Each service has a socket of its own: the channel to the one before is closed, its descriptor too."""
    with SuffixCache() as cache, clients(f"unix:{folder}/s") as client:

        def use() -> None:
            with serving(cache, f"unix:{folder}/s"):
                session = client.namespace("a").open_session(PROMPT)
                session.step([7])
                session.close()

        use()
        with pytest.raises(ServiceUnavailableError):
            client.server_info()
        for _ in range(3):
            use()
        eventually(lambda: len(sockets_held(folder)) <= 1, "only the last socket is open")
    assert sockets_held(folder) == []


def sockets_held(folder: Path) -> list[str]:
    """Files of the folder that this process has open; a service's own sockets have no such name."""
    held = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            held.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in held if path.startswith(f"{folder}/")]


def test_a_call_that_runs_while_the_socket_is_replaced_is_answered(folder: Path) -> None:
    """Its channel stays open until the call ends."""
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        transport = grpc_sync.GrpcTransport(address)
        with channels_of(transport).use() as before:
            os.rename(folder / "s", folder / "moved-s")
            with serving(cache, f"unix:{folder}/s"):
                with channels_of(transport).use() as after:
                    assert after is not before
                call = before.channel.unary_unary("/suffixsvc.v1.SuffixCache/GetServerInfo")
                assert call(b"", timeout=PATIENCE_S)
        with pytest.raises(ValueError, match="closed channel"):
            call(b"", timeout=PATIENCE_S)
        transport.close()


@pytest.mark.parametrize("what", ["nothing", "a file", "a folder", "a dead socket"])
def test_a_path_without_a_listener_is_named(folder: Path, what: str) -> None:
    path = folder / "s"
    if what == "a file":
        path.touch()
    elif what == "a folder":
        path.mkdir()
    elif what == "a dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    with SuffixClient(f"unix:{path}", CONFIG) as client:
        with pytest.raises(ServiceUnavailableError, match="cannot be reached") as caught:
            client.server_info()
        assert str(path) in str(caught.value.expected)
        assert caught.value.remedy
