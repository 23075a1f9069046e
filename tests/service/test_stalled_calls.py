"""Deadlines of calls that wait for their client; calls of vanished clients end."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import (
    InvalidInputError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.service import server as server_module
from suffixsvc.service.calls import admission, stalls
from suffixsvc.service.calls import interceptor as interceptor_module
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.idle_calls import SERVICE, IdleCalls, add_outputs, connection, reflection, silent_unary
from support.serving import PATIENCE_S, eventually, serving, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)


@pytest.fixture
def address() -> Iterator[str]:
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s") as (_, address),
    ):
        yield address


class Bulk:
    """A call of AddOutputs that has sent some outputs and is silent now."""

    def __init__(self, address: str, outputs: int) -> None:
        self._messages: queue.SimpleQueue[pb.AddOutputsRequest | None] = queue.SimpleQueue()
        self._channel = connection(address)
        self.stub = suffix_cache_pb2_grpc.SuffixCacheStub(self._channel)
        for _ in range(outputs):
            self.send([pb.OutputItem(token_ids=wire.pack_tokens(np.array([1, 2, 3], np.int32)))])
        self.call = self.stub.AddOutputs.future(iter(self._messages.get, None))
        if outputs:
            eventually(lambda: self.stored() == outputs, "the outputs are stored")

    def send(self, outputs: list[pb.OutputItem]) -> None:
        self._messages.put(pb.AddOutputsRequest(namespace="a", outputs=outputs))

    def end(self) -> None:
        self._messages.put(None)

    def stored(self) -> int:
        try:
            return int(self.stub.GetStats(pb.GetStatsRequest(namespace="a"), timeout=PATIENCE_S).outputs)
        except grpc.RpcError:  # the namespace does not exist yet
            return 0

    def error(self) -> SuffixError:
        """The error that its client receives."""
        eventually(self.call.done, "the call is over")
        return error_from_rpc(self.call)

    def __enter__(self) -> Bulk:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._channel.close()


def test_a_silent_bulk_load_reports_its_stored_outputs(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened: the call was cancelled and its client received CANCELLED, whatever had been stored: it
    could only send everything again, and have some outputs stored twice."""
    monkeypatch.setattr(interceptor_module, "BETWEEN_MESSAGES_SECONDS", 0.5)
    with Bulk(address, 3) as bulk:
        error = bulk.error()
        assert bulk.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert isinstance(error, ServiceTimeoutError)
        assert "3 outputs of this call were stored" in error.message
        assert error.remedy
        assert bulk.stored() == 3


def test_a_bulk_load_cut_by_shutdown_reports_its_stored_outputs() -> None:
    with SuffixCache() as cache, socket_dir() as folder:
        with serving(cache, f"unix:{folder}/s") as (_, address):
            bulk = Bulk(address, 3)
        with bulk:
            error = bulk.error()
            assert isinstance(error, ServiceUnavailableError)
            assert "shutting down (3 outputs of this call were stored)" in error.message
        assert cache.namespace("a").stats().outputs == 3


def test_messages_without_outputs_hold_no_permit(address: str) -> None:
    """What happened: each message extended a call by 30 s, even an empty one: a client could hold all permits
    of AddOutputs without a limit. The first message may be empty: older clients send it for an empty load."""
    for outputs in ([0], [0, 1], [1, 0], [0, 0]):
        with Bulk(address, 0) as bulk:
            for count in outputs:
                bulk.send([pb.OutputItem(token_ids=wire.pack_tokens(np.array([1], np.int32)))] * count)
            if outputs[1:] == [0]:
                error = bulk.error()
                assert isinstance(error, InvalidInputError)
                assert error.message.startswith("outputs must hold")
                assert f"({sum(outputs)} outputs of this call were stored)" in error.message
                continue
            bulk.end()
            assert bulk.call.result(PATIENCE_S).outputs == sum(outputs)


def test_calls_that_went_silent_leave_no_thread_waiting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages are read in threads of their own, which end with the calls: there are 136."""
    monkeypatch.setattr(interceptor_module, "BETWEEN_MESSAGES_SECONDS", 0.5)
    for _ in range(3):
        with IdleCalls(address, admission.MAX_UPLOADS, add_outputs) as idle:
            eventually(lambda: len(idle.ended()) == admission.MAX_UPLOADS, "the calls are over")
    with SuffixClient(address, PATIENT) as client:
        client.namespace("a").add_output([1, 2, 3])


@pytest.mark.parametrize(
    ("begin", "setting", "code"),
    [
        (reflection, "BETWEEN_MESSAGES_SECONDS", grpc.StatusCode.DEADLINE_EXCEEDED),
        (silent_unary(f"{SERVICE}/GetServerInfo"), "REQUEST_SECONDS", grpc.StatusCode.CANCELLED),
        (silent_unary(admission.CHECK), "CHECK_SECONDS", grpc.StatusCode.CANCELLED),
    ],
)
def test_a_call_that_sends_nothing_is_ended(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[grpc.Channel, Iterator[Any]], Any],
    setting: str,
    code: grpc.StatusCode,
) -> None:
    monkeypatch.setattr(interceptor_module, setting, 0.3)
    with SuffixClient(address, PATIENT) as client:
        client.server_info()  # a setting is read once a method is called for the first time
    with IdleCalls(address, 3, begin) as idle:
        eventually(lambda: len(idle.ended()) == 3, "the calls are over")
        assert {call.code() for call in idle.calls} == {code}


def test_a_stream_may_be_silent_without_a_limit(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_overdue_calls_are_cancelled_if_the_log_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened: the line was logged first. On a closed stderr it raised, and neither that call nor those
    after it were cancelled: they had left the table, and held their threads without end."""

    class Call:
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    def refuse(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "the reader of stderr has exited")

    monkeypatch.setattr(stalls.log, "info", refuse, raising=False)
    stalled, calls = stalls.StalledCalls(), [Call(), Call()]
    with contextlib.ExitStack() as waits:
        for call in calls:
            waits.enter_context(stalled.deadline(call, 0.0, "GetStats", "silent"))  # type: ignore[arg-type] # only cancel is called
        assert stalled.cancel_overdue() == 2
    assert [call.cancelled for call in calls] == [True, True]


class Cut:
    """A relay between client and server that can be cut: then it passes neither bytes nor ends."""

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


def test_the_permit_of_a_vanished_client_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
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

            assert not served(), "the only permit is in use"
            eventually(served, "the permit of the vanished client is released")
            requests.put(None)
        relay.close()
        server.drain()
