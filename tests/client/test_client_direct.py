"""The direct socket: its use, the same answers as gRPC, threads, forks and restarts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import (
    InvalidConfigError,
    LimitExceededError,
    ServiceUnavailableError,
    UnknownSessionError,
)
from suffixsvc.frames import DIRECT_SUFFIX, GREETING
from suffixsvc.service.server import SuffixServer
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.transport.direct import UnixTransport, open_transport
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from support.direct import opening
from support.serving import ServeProcess, eventually, serving, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
WORDS = [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def server(folder: Path) -> Iterator[SuffixServer]:
    limits = Limits(max_message_bytes=4096)
    with SuffixCache() as cache, serving(cache, f"unix:{folder / 's'}", limits) as (server, _):
        yield server


# -- use of the socket, and equal answers


def test_only_unix_addresses_use_the_direct_socket_unless_disabled(folder: Path) -> None:
    assert isinstance(open_transport(f"unix:{folder}/s"), UnixTransport)
    assert isinstance(open_transport(f"unix:{folder}/s", direct=False), GrpcTransport)
    assert isinstance(open_transport("localhost:1"), GrpcTransport)
    with pytest.raises(InvalidConfigError, match="must be unix:PATH or HOST:PORT"):
        open_transport("unix:")
    with pytest.raises(InvalidConfigError, match="direct must be a bool"):
        ClientConfig(direct="yes")  # type: ignore[arg-type] # the point


def test_answers_are_those_of_grpc(folder: Path) -> None:
    rng = np.random.default_rng(5)
    texts = [rng.integers(0, 40, 120).tolist() for _ in range(3)]

    def draft_all(direct: bool) -> list[object]:
        said: list[object] = []
        settings = ClientConfig(step_timeout_s=300, open_timeout_s=300, direct=direct)
        with (
            SuffixCache() as cache,
            serving(cache, f"unix:{folder / 's'}") as (_, address),
            SuffixClient(address, settings) as client,
        ):
            for text in texts * 2:
                session = client.namespace("a").open_session(text[:10], labels={"agent": "x"})
                for at in range(10, 120, 7):
                    draft = session.step(text[at : at + 7], 24)
                    said.append((draft.token_ids.tolist(), np.round(draft.probs, 6).tolist()))
                session.append_context([1, 2, 3])
                said.append(session.step([4], 8).token_ids.tolist())
                said.append((session.close(), session.length))
            said.append((client.counts.steps, client.counts.empty))
        return said

    assert draft_all(True) == draft_all(False)


def test_no_step_uses_grpc_with_a_direct_socket(
    folder: Path, server: SuffixServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("over gRPC")

    for name in ("exchange", "post", "call"):
        monkeypatch.setattr(GrpcTransport, name, refuse)
    with SuffixClient(f"unix:{folder / 's'}", PATIENT) as client:
        session = client.namespace("a").open_session([1, 2])
        session.step(WORDS * 2)
        session.append_context([3])
        assert len(session.step([11, 12, 13])) > 0
        session.close()


def test_without_a_direct_socket_grpc_is_used(folder: Path, server: SuffixServer) -> None:
    (folder / f"s{DIRECT_SUFFIX}").unlink()
    with SuffixClient(f"unix:{folder / 's'}", PATIENT) as client:
        session = client.namespace("a").open_session([1, 2])
        assert len(session.step(WORDS * 2)) > 0
        assert client.counts.empty == {}
        session.close()


def test_a_server_of_another_protocol_at_the_path_is_not_used(folder: Path, server: SuffixServer) -> None:
    path = str(folder / "s") + DIRECT_SUFFIX
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, ThreadPoolExecutor() as pool:
        other.bind(path)
        other.listen()
        with SuffixClient(f"unix:{folder / 's'}", PATIENT) as client:

            def greet() -> None:
                caller, _ = other.accept()
                with caller:
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            greeted = pool.submit(greet)
            session = client.namespace("a").open_session([1, 2])
            assert len(session.step(WORDS * 2)) > 0
            greeted.result(300)


def test_a_path_too_long_for_a_direct_socket(folder: Path) -> None:
    name = "x" * (107 - len(os.fsencode(folder)) - 1)
    with (
        SuffixCache() as cache,
        serving(cache, f"unix:{folder / name}") as (_, address),
        SuffixClient(address, PATIENT) as client,
    ):
        assert os.listdir(folder) == [name]
        assert len(client.namespace("a").open_session([1]).step(WORDS * 2)) > 0


def test_the_socket_is_private_and_removed_with_the_server(folder: Path) -> None:
    path = folder / f"s{DIRECT_SUFFIX}"
    with SuffixCache() as cache, serving(cache, f"unix:{folder / 's'}"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_threads_do_not_mix_up_answers(folder: Path, server: SuffixServer) -> None:
    with SuffixClient(f"unix:{folder / 's'}", PATIENT) as client, ThreadPoolExecutor(8) as pool:

        def draft_all(n: int) -> list[int]:
            session = client.namespace(f"n{n}").open_session([n])
            words = [100 * n + i for i in range(8)]
            for _ in range(20):
                session.step(words)
            drafted = session.step(words[:3], 5).token_ids.tolist()
            session.close()
            return drafted

        for n, drafted in enumerate(pool.map(draft_all, range(16))):
            assert drafted == [100 * n + i for i in range(3, 8)]


def test_errors_are_those_of_the_service(folder: Path, server: SuffixServer) -> None:
    transport = UnixTransport(f"unix:{folder / 's'}")
    request = pb.StreamRequest()
    request.close.session_id = "absent"
    [reply] = transport.exchange([request], 300.0)
    assert isinstance(wire.error_from_detail(reply.error), UnknownSessionError)
    long = pb.StreamRequest()
    long.append_context.token_ids = b"\1\0\0\0" * 2000
    with pytest.raises(LimitExceededError, match="at most 4096 bytes"):
        transport.exchange([long], 300.0)
    assert transport.exchange([opening(0)], 300.0)[0].open.session_id
    assert transport.call(Call(pb.GetServerInfoRequest(), 20.0)).max_message_bytes == 4096
    transport.close()
    for act in (lambda: transport.exchange([opening(0)], 300.0), lambda: transport.post([opening(0)])):
        with pytest.raises(ServiceUnavailableError, match="the client is closed"):
            act()


# -- regressions


@pytest.mark.crash
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_connection_of_its_own(folder: Path) -> None:
    """In a separate process that has not used gRPC before it forks: gRPC does not survive a fork."""
    script = """
import os, sys
from suffixsvc_client.transport.direct import UnixTransport
from suffixsvc.v1 import suffix_cache_pb2 as pb

def opened(transport):
    request = pb.StreamRequest()
    request.open.namespace = "a"
    request.open.prompt_token_ids = b"\\1\\0\\0\\0"
    return transport.exchange([request], 300.0)[0].open.session_id

transport = UnixTransport(sys.argv[1])
assert opened(transport)
child = os.fork()
for _ in range(200):
    assert opened(transport)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert opened(transport)
os._exit(0)
"""
    with ServeProcess(folder) as service:
        service.start()
        status = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", script, service.address])
        assert status == 0


def test_many_messages_at_once(folder: Path, server: SuffixServer) -> None:
    """More than both socket buffers hold: both sides must keep reading."""
    transport = UnixTransport(f"unix:{folder / 's'}")
    [opened] = transport.exchange([opening(0)], 300.0)
    requests = []
    for n in range(1000):
        request = pb.StreamRequest()
        request.append_context.session_id = opened.open.session_id
        request.append_context.token_ids = b"\1\0\0\0" * 800
        request.append_context.at = 1 + 800 * n
        requests.append(request)
    replies = transport.exchange(requests, 60.0)
    assert [reply.append_context.length for reply in replies] == [1 + 800 * (n + 1) for n in range(1000)]
    transport.close()


def test_a_session_that_changes_threads_keeps_its_order(folder: Path, server: SuffixServer) -> None:
    """Context posted on one thread's connection arrives before another thread's step."""
    with (
        SuffixClient(f"unix:{folder / 's'}", PATIENT) as client,
        ThreadPoolExecutor(1) as one,
        ThreadPoolExecutor(1) as other,
    ):
        session = client.namespace("a").open_session([1, 2])
        for pool in (one, other):
            pool.submit(session.step, WORDS).result()
        for n in range(200):
            one.submit(session.append_context, [7] * (1 + 30 * (n % 3))).result()
            other.submit(session.step, WORDS).result()
        assert client.counts.empty == {}
        session.close()


@pytest.mark.crash
def test_context_is_not_waited_for(folder: Path) -> None:
    """A stopped service reads nothing: context that does not fit the buffer is sent with the next step."""
    hasty = ClientConfig(step_timeout_s=0.2, breaker_failures=1000)
    with ServeProcess(folder) as service, SuffixClient(service.start().address, hasty) as client:
        session = client.namespace("a").open_session([1, 2, 3])
        eventually(lambda: len(session.step(WORDS)) > 0, "it drafts")
        service.send(signal.SIGSTOP)
        for _ in range(60):
            session.append_context([5] * 8_000)
        service.send(signal.SIGCONT)
        eventually(lambda: len(session.step(WORDS)) > 0, "it drafts again")
        assert session.close() is not None


@pytest.mark.crash
def test_idle_threads_survive_a_restart(folder: Path) -> None:
    """Each thread's connection is dead, which is detected before anything is sent on it."""
    with ServeProcess(folder) as service, ThreadPoolExecutor(8) as pool:
        transport = UnixTransport(service.start().address)
        together = threading.Barrier(8)

        def ask(_: int) -> str:
            together.wait(300)
            return transport.exchange([opening(0)], 300.0)[0].open.session_id

        assert all(pool.map(ask, range(8)))
        service.kill()
        service.start()
        assert all(pool.map(ask, range(8)))
        transport.close()


@pytest.mark.crash
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer's signal")
def test_a_client_can_be_closed_in_a_signal_handler(folder: Path) -> None:
    """While its thread waits for an answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(folder / "s") + DIRECT_SUFFIX)
        silent.listen()
        transport = UnixTransport(f"unix:{folder / 's'}")
        accepted = ThreadPoolExecutor(1).submit(silent.accept)

        def greet_and_close(*_: object) -> None:
            transport.close()

        before = signal.signal(signal.SIGALRM, greet_and_close)
        try:
            pool = ThreadPoolExecutor(1)
            pool.submit(lambda: accepted.result(300)[0].sendall(GREETING))
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(ServiceUnavailableError, match="the client is closed"):
                transport.exchange([opening(0)], 300.0)
        finally:
            signal.signal(signal.SIGALRM, before)
            accepted.result(300)[0].close()
