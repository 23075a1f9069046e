"""A stranger in the place of a socket that the client has checked, or found missing, is sent nothing.

What happened: a client called while no process listened; the check passed, as gRPC would say so. gRPC's
channel then connected by itself, to a stranger who had bound the path meanwhile. The stranger removed its
file, the service started, the next check found the service, and the call went over the channel that was
connected already: the stranger received the namespace and the prompt. Every later connection of the channel
was made after a check as well, so that a file replaced in between was enough.
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
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient, grpc_aio, grpc_sync
from support.serving import PATIENCE_S, Blocking, event_loop, eventually, serving, socket_dir
from support.stranger import HTTP2_SETTINGS, stranger_at

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.frames import DIRECT_SUFFIX

CONFIG = ClientConfig(step_timeout_s=300, open_timeout_s=300, call_timeout_s=30, direct=False)
PROMPT = list(range(1000, 1010))
#: gRPC's longest pause between two attempts to connect is 2 s; where it makes none all of this passes
RECONNECT_SECONDS = 3.0

Clients = Callable[[str], contextlib.AbstractContextManager[Any]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Like /tmp: everybody may create files, nobody remove those of others."""
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
    """Also where the block fails: what it waited for is the stranger then."""
    try:
        yield
    finally:
        assert log.read_bytes() == b""


both = pytest.mark.parametrize("clients", [blocking, asynchronous])


@both
def test_a_stranger_that_binds_the_path_of_a_missing_service_is_sent_nothing(
    folder: Path, clients: Clients
) -> None:
    with clients(f"unix:{folder}/s") as client, SuffixCache() as cache:
        with pytest.raises(ServiceUnavailableError, match="cannot be reached") as caught:
            client.server_info()
        assert caught.value.remedy
        with stranger_at(folder / "s", HTTP2_SETTINGS) as log:
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
def test_a_stranger_that_replaces_a_checked_socket_is_sent_nothing(
    folder: Path, clients: Clients, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the check: before the first connection, and before one that gRPC makes after a loss."""
    path_of = grpc_sync.path_of
    to_do: list[Callable[[], object]] = []

    def just_after_the_check(method: Any) -> str:
        while to_do:
            to_do.pop(0)()
        return path_of(method)

    for module in (grpc_sync, grpc_aio):
        monkeypatch.setattr(module, "path_of", just_after_the_check)
    with (
        SuffixCache() as cache,
        stranger_at(folder / "t", HTTP2_SETTINGS) as log,
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
def test_a_service_that_comes_back_is_found_at_once_and_leaves_no_file_open(
    folder: Path, clients: Clients
) -> None:
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
        eventually(lambda: len(sockets_held(folder)) <= 1, "only the last socket is held")
    assert sockets_held(folder) == []


def sockets_held(folder: Path) -> list[str]:
    """Files of the folder that this process holds open; the sockets of a service itself have no such name."""
    held = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            held.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in held if path.startswith(f"{folder}/")]


def test_a_call_that_runs_while_the_socket_is_replaced_is_answered(folder: Path) -> None:
    """Its channel stays until it has ended."""
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        transport = grpc_sync.GrpcTransport(address)
        with transport._channels.use() as before:
            for name in ("s", f"s{DIRECT_SUFFIX}"):
                os.rename(folder / name, folder / f"moved-{name}")
            with serving(cache, f"unix:{folder}/s"):
                with transport._channels.use() as after:
                    assert after is not before
                call = before.channel.unary_unary("/suffixsvc.v1.SuffixCache/GetServerInfo")
                assert call(b"", timeout=PATIENCE_S)
        with pytest.raises(ValueError, match="closed channel"):
            call(b"", timeout=PATIENCE_S)
        transport.close()


@pytest.mark.parametrize("what", ["nothing", "a file", "a folder", "a dead socket"])
def test_what_is_no_listener_is_named(folder: Path, what: str) -> None:
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
