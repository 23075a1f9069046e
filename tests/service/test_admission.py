"""Places of calls: calls that hold a thread and say nothing keep no other call from being served.

What happened: 560 calls of AddOutputs, or of reflection, that were opened and then sent nothing held every
thread of the server's pool. GetServerInfo and health checks were refused ("Concurrent RPC limit exceeded!")
for as long as those clients liked, so that a supervisor would have restarted a service that was well. Nothing
ended such a call, and a connection whose other end was gone held its streams until TCP's timers ran out.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport import error_from_rpc
from support.serving import PATIENCE_S, eventually, serving, socket_dir

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import LimitExceededError, ServiceUnavailableError
from suffixsvc.service import admission
from suffixsvc.service import interceptor as interceptor_module
from suffixsvc.service import server as server_module
from suffixsvc.service.health import HealthServicer
from suffixsvc.service.listen import parse_address
from suffixsvc.service.server import SERVICE_NAME, SuffixServer
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc

PATIENT = ClientConfig(step_timeout_s=30, open_timeout_s=30)
SERVING = health_pb2.HealthCheckResponse.SERVING
IDLE_CALLS = 560


@pytest.fixture
def address() -> Iterator[str]:
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s") as (_, address),
    ):
        yield address


def connection(address: str) -> grpc.Channel:
    """One of its own: gRPC shares them otherwise."""
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


class IdleCalls:
    """Calls that are opened and send nothing."""

    def __init__(
        self, address: str, number: int, begin: Callable[[grpc.Channel, Iterator[Any]], Any]
    ) -> None:
        self._silence: list[queue.SimpleQueue[None]] = [queue.SimpleQueue() for _ in range(number)]
        self._channels = [connection(address) for _ in range(6)]
        self.calls = [
            begin(self._channels[i % 6], iter(silence.get, None)) for i, silence in enumerate(self._silence)
        ]

    def ended(self) -> list[Any]:
        return [call for call in self.calls if call.done()]

    def __enter__(self) -> IdleCalls:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self.calls:
            call.cancel()
        for silence in self._silence:
            silence.put(None)
        for channel in self._channels:
            channel.close()


def add_outputs(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
    return suffix_cache_pb2_grpc.SuffixCacheStub(channel).AddOutputs.future(requests)


def reflection(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests)


def silent_unary(method: str) -> Callable[[grpc.Channel, Iterator[Any]], Any]:
    """A call of one request that never sends it."""

    def begin(channel: grpc.Channel, requests: Iterator[Any]) -> Any:
        return channel.stream_unary(method).future(requests)

    return begin


def require_that_others_are_served(address: str) -> None:
    with connection(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE_NAME):
            assert (
                health.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S).status
                == SERVING
            )
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        assert next(watch).status == SERVING
        watch.cancel()
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        assert stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=PATIENCE_S).instance_id
    for direct in (True, False):
        config = ClientConfig(step_timeout_s=30, open_timeout_s=30, direct=direct)
        with SuffixClient(address, config) as client:
            session = client.namespace("a").open_session([1, 2, 3])
            session.step([4])
            assert (client.counts.steps, client.counts.empty) == (1, {})
            session.close()


@pytest.mark.parametrize(
    ("begin", "places"),
    [(add_outputs, admission.MAX_UPLOADS), (reflection, admission.MAX_REFLECTIONS)],
)
def test_idle_calls_of_one_kind_keep_nobody_else_from_being_served(
    address: str, begin: Callable[[grpc.Channel, Iterator[Any]], Any], places: int
) -> None:
    with IdleCalls(address, IDLE_CALLS, begin) as idle:
        eventually(lambda: len(idle.ended()) == IDLE_CALLS - places, "those beyond the places are refused")
        require_that_others_are_served(address)
        for call in idle.ended():
            assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            error = error_from_rpc(call)
            assert isinstance(error, LimitExceededError)
            assert str(places) in str(error.expected)
            assert error.remedy
        assert len(idle.ended()) == IDLE_CALLS - places


@pytest.mark.parametrize("method", ["GetServerInfo", "CloseSession", "Forget"])
def test_calls_that_never_send_their_request_leave_health_its_reserve(address: str, method: str) -> None:
    """They have the places of all calls; health checks have places of their own."""
    begin = silent_unary(f"/suffixsvc.v1.SuffixCache/{method}")
    held = admission.pool_threads(512) - admission.MAX_CHECKS
    with IdleCalls(address, held + 50, begin) as idle, connection(address) as channel:
        eventually(lambda: len(idle.ended()) == 50, "those beyond the places are refused")
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status == SERVING
        assert {call.code() for call in idle.ended()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_watches_have_a_limit_and_end_beside_a_change(address: str) -> None:
    with contextlib.ExitStack() as channels:
        begun = [channels.enter_context(connection(address)) for _ in range(4)]
        watches = [
            health_pb2_grpc.HealthStub(begun[i % 4]).Watch(health_pb2.HealthCheckRequest())
            for i in range(admission.MAX_WATCHES)
        ]
        for watch in watches:
            assert next(watch).status == SERVING
        health = health_pb2_grpc.HealthStub(begun[0])
        with pytest.raises(grpc.RpcError) as caught:
            next(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        require_all_but_watches(address)
        watches[0].cancel()

        def another_is_taken() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(next(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)).status)
            return False

        eventually(another_is_taken, "a place is free when a watch ends")


def require_all_but_watches(address: str) -> None:
    with SuffixClient(address, PATIENT) as client:
        assert client.server_info().instance_id


def test_places_are_given_back(address: str) -> None:
    """Calls that end, that are cancelled and that are refused leave nothing held."""
    for _ in range(3):
        with IdleCalls(address, 2 * admission.MAX_UPLOADS, add_outputs) as idle:
            eventually(lambda: len(idle.ended()) == admission.MAX_UPLOADS, "the places are taken")
        with SuffixClient(address, PATIENT) as client:
            written = 0

            def write() -> bool:
                nonlocal written
                with contextlib.suppress(LimitExceededError):  # cancelled calls hold theirs a moment longer
                    client.namespace("a").add_output([1, 2, 3])
                    written += 1
                return written > 0

            eventually(write, "a place is free")


def test_a_bulk_load_that_goes_silent_is_cancelled(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what was kept, and its place is free."""
    monkeypatch.setattr(interceptor_module, "BETWEEN_MESSAGES_SECONDS", 0.3)
    silence = queue.SimpleQueue[None]()
    tokens = wire.pack_tokens(np.array([1, 2, 3], np.int32))

    def requests() -> Iterator[pb.AddOutputsRequest]:
        yield pb.AddOutputsRequest(namespace="a", outputs=[pb.OutputItem(token_ids=tokens)])
        silence.get()

    with connection(address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        call = stub.AddOutputs.future(requests())
        eventually(call.done, "the call is over")
        assert call.code() is grpc.StatusCode.CANCELLED
        assert isinstance(error_from_rpc(call), ServiceUnavailableError)
        assert stub.GetStats(pb.GetStatsRequest(namespace="a"), timeout=PATIENCE_S).outputs == 1
        silence.put(None)


@pytest.mark.parametrize(
    ("begin", "setting"),
    [
        (reflection, "BETWEEN_MESSAGES_SECONDS"),
        (silent_unary("/suffixsvc.v1.SuffixCache/GetServerInfo"), "REQUEST_SECONDS"),
        (silent_unary("/grpc.health.v1.Health/Check"), "CHECK_SECONDS"),
    ],
)
def test_a_call_that_sends_nothing_is_cancelled(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[grpc.Channel, Iterator[Any]], Any],
    setting: str,
) -> None:
    monkeypatch.setattr(interceptor_module, setting, 0.3)
    with SuffixClient(address, PATIENT) as client:
        client.server_info()  # a setting is read once a method is called for the first time
    with IdleCalls(address, 3, begin) as idle:
        eventually(lambda: len(idle.ended()) == 3, "the calls are over")
        assert {call.code() for call in idle.calls} == {grpc.StatusCode.CANCELLED}


def test_a_stream_may_be_silent_for_as_long_as_it_likes(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent waits for its tools for minutes."""
    for setting in ("BETWEEN_MESSAGES_SECONDS", "REQUEST_SECONDS"):
        monkeypatch.setattr(interceptor_module, setting, 0.1)
    requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
    with connection(address) as channel, IdleCalls(address, 1, reflection) as idle:
        replies = suffix_cache_pb2_grpc.SuffixCacheStub(channel).Stream(iter(requests.get, None))
        requests.put(pb.StreamRequest(id=1, open=pb.OpenSessionRequest(namespace="a")))
        assert next(replies).open.session_id
        eventually(lambda: len(idle.ended()) == 1, "a call with a deadline is over")
        requests.put(pb.StreamRequest(id=2, open=pb.OpenSessionRequest(namespace="a")))
        assert next(replies).id == 2
        requests.put(None)


class Cut:
    """A relay whose two ends hear nothing of each other any more, once it is cut: no byte and no end."""

    def __init__(self, target: Path, path: Path) -> None:
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._stop, self.cut = threading.Event(), threading.Event()
        self.server_hung_up = threading.Event()
        threading.Thread(target=self._relay, daemon=True).start()

    def _relay(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
        self._pass(server, client)
        self.server_hung_up.set()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.cut.is_set():
                    sink.sendall(data)

    def close(self) -> None:
        self._listener.close()


def test_a_client_that_vanished_without_a_word_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own pings find out. Through a relay that swallows everything from some moment on."""
    options = dict(server_module.SERVER_OPTIONS)
    assert 0 < options["grpc.keepalive_time_ms"] <= 60_000
    timeouts = ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")  # the later of the two counts
    assert all(0 < options[name] <= 60_000 for name in timeouts)
    options |= dict.fromkeys(("grpc.keepalive_time_ms", *timeouts), 500)
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", tuple(options.items()))
    with SuffixCache() as cache, socket_dir() as folder:
        server = SuffixServer(cache, [parse_address(f"unix:{folder}/s")], max_streams=1)
        server.start()
        relay = Cut(folder / "s", folder / "r")
        requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
        with connection(f"unix:{folder}/r") as gone, connection(f"unix:{folder}/s") as channel:
            replies = suffix_cache_pb2_grpc.SuffixCacheStub(gone).Stream(iter(requests.get, None))
            requests.put(pb.StreamRequest(id=1, open=pb.OpenSessionRequest(namespace="a")))
            assert next(replies).open.session_id
            relay.cut.set()
            stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)

            def served() -> bool:
                request = pb.StreamRequest(id=1, open=pb.OpenSessionRequest(namespace="a"))
                with contextlib.suppress(grpc.RpcError):
                    return [reply.id for reply in stub.Stream(iter([request]), timeout=PATIENCE_S)] == [1]
                return False

            assert not served(), "the only place is taken"
            eventually(served, "the place of the client that is gone is free")
            requests.put(None)
        relay.close()
        server.drain()


def test_watches_that_end_while_a_status_changes_do_not_stop_the_server(address: str) -> None:
    """What happened: the health servicer that comes with gRPC held its lock while it waited for a message to
    a watcher to be sent; the end of another watch waited for that lock in the one thread that reports what
    was sent. The server stood still."""
    health = HealthServicer()
    server = grpc.server(ThreadPoolExecutor(70))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    health.set("", serving=True)
    with socket_dir() as folder:
        server.add_insecure_port(f"unix:{folder}/h")
        server.start()
        for turn in range(20):
            with connection(f"unix:{folder}/h") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(30)]
                for watch in watches:
                    next(watch)
            health.set("", serving=turn % 2 == 0)  # while the ends of the watches arrive
        with connection(f"unix:{folder}/h") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status != SERVING
        assert server.stop(None).wait(PATIENCE_S)
