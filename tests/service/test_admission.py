"""Admission control: calls that hold a thread and send nothing do not block other calls.

What happened: 560 calls of AddOutputs, or of reflection, that were opened and then sent nothing held every
thread of the server's pool. GetServerInfo and health checks were refused ("Concurrent RPC limit exceeded!")
until those calls ended, so that a supervisor would have restarted a healthy service. Nothing ended such a
call, and a connection whose peer had vanished held its streams until TCP's timers expired.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc import SuffixCache
from suffixsvc.access import call_limits
from suffixsvc.errors import LimitExceededError
from suffixsvc.service.calls import admission
from suffixsvc.service.calls import interceptor as interceptor_module
from suffixsvc.service.calls.health import HealthServicer
from suffixsvc.service.server import SERVICE_NAME
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.idle_calls import SERVICE, IdleCalls, add_outputs, connection, reflection, silent_unary
from support.serving import PATIENCE_S, eventually, serving, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
SERVING = health_pb2.HealthCheckResponse.SERVING
IDLE_CALLS = 560
#: more than all threads of the pool that are not for streams
SILENT_CALLS = 800


@pytest.fixture
def address() -> Iterator[str]:
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s") as (_, address),
    ):
        yield address


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
    with SuffixClient(address, PATIENT) as client:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([4])
        assert (client.counts.steps, client.counts.empty) == (1, {})
        session.close()


@pytest.mark.parametrize(
    ("begin", "permits"),
    [(add_outputs, admission.MAX_UPLOADS), (reflection, admission.MAX_REFLECTIONS)],
)
def test_idle_calls_of_one_kind_do_not_block_other_kinds(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[grpc.Channel, Iterator[Any]], Any],
    permits: int,
) -> None:
    monkeypatch.setattr(call_limits, "SILENT_SECONDS", 3600.0)
    with IdleCalls(address, IDLE_CALLS, begin) as idle:
        eventually(lambda: len(idle.ended()) == IDLE_CALLS - permits, "calls over the limit are refused")
        require_that_others_are_served(address)
        for call in idle.ended():
            assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            error = error_from_rpc(call)
            assert isinstance(error, LimitExceededError)
            assert str(permits) in str(error.expected)
            assert error.remedy
        assert len(idle.ended()) == IDLE_CALLS - permits


@pytest.mark.parametrize("method", ["GetServerInfo", "Step", "ExportNgrams"])
def test_calls_that_never_send_their_request_do_not_block_others(
    address: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """What happened: calls of one request had no limit. 750 of them that sent nothing occupied all remaining
    threads for 30 s; streams, opens and GetServerInfo were refused. Now a silent call is preemptible."""
    monkeypatch.setattr(call_limits, "SILENT_SECONDS", 0.0)
    begin = silent_unary(f"{SERVICE}/{method}")
    permits = admission.MAX_EXPORT_CALLS if method == "ExportNgrams" else admission.MAX_SHORT_CALLS
    with IdleCalls(address, SILENT_CALLS, begin) as idle:
        eventually(lambda: len(idle.ended()) == SILENT_CALLS - permits, "the others were preempted")
        require_that_others_are_served(address)
        assert {call.code() for call in idle.ended()} == {grpc.StatusCode.CANCELLED}


def test_calls_whose_request_was_read_are_not_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their permits; one call more is refused with its reason."""
    monkeypatch.setattr(call_limits, "SILENT_SECONDS", 0.0)
    cancelled: list[str] = []
    permits = admission.Admission(1)
    held = []
    for number in range(admission.MAX_CHECKS):
        held.append(permits.acquire(admission.CHECK, lambda number=number: cancelled.append(str(number))))
    for permit in held[1:]:
        permit.mark_received()
    held.append(permits.acquire(admission.CHECK, lambda: cancelled.append("new")))
    assert cancelled == ["0"], "the only silent call"
    with pytest.raises(LimitExceededError):
        held[0].mark_received()
    held[-1].mark_received()
    with pytest.raises(LimitExceededError, match="health checks must be at most 16"):
        permits.acquire(admission.CHECK, ignore)
    for permit in held:
        permit.close()
    again = [permits.acquire(admission.CHECK, ignore) for _ in range(admission.MAX_CHECKS)]
    assert len(again) == admission.MAX_CHECKS, "each permit was released once"
    assert cancelled == ["0"]


def ignore() -> None:
    """Cancel nothing: there is no call."""


def test_silent_health_checks_do_not_block_health_checks(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: 16 checks that sent nothing held every permit of their kind for 5 s, and could be opened
    again: a supervisor was refused, and would have restarted a healthy service."""
    monkeypatch.setattr(interceptor_module, "CHECK_SECONDS", 3600.0)
    monkeypatch.setattr(call_limits, "SILENT_SECONDS", 0.0)
    silent = 2 * admission.MAX_CHECKS
    with IdleCalls(address, silent, silent_unary(admission.CHECK)) as idle:
        eventually(lambda: len(idle.ended()) == admission.MAX_CHECKS, "the calls over the limit have ended")
        with connection(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for _ in range(silent):
                reply = health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
                assert reply.status == SERVING
        assert {call.code() for call in idle.ended()} == {grpc.StatusCode.CANCELLED}


def test_watches_have_a_limit_and_can_end_during_a_change(address: str) -> None:
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

        def another_is_admitted() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(next(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)).status)
            return False

        eventually(another_is_admitted, "a permit is free after a watch ends")


def require_all_but_watches(address: str) -> None:
    with SuffixClient(address, PATIENT) as client:
        assert client.server_info().instance_id


def test_permits_are_released(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that end, are cancelled or are refused leave no permit in use."""
    monkeypatch.setattr(call_limits, "SILENT_SECONDS", 3600.0)
    for _ in range(3):
        with IdleCalls(address, 2 * admission.MAX_UPLOADS, add_outputs) as idle:
            eventually(lambda: len(idle.ended()) == admission.MAX_UPLOADS, "all permits are in use")
        with SuffixClient(address, PATIENT) as client:
            written = 0

            def write() -> bool:
                nonlocal written
                with contextlib.suppress(LimitExceededError):  # cancelled calls hold theirs a little longer
                    client.namespace("a").add_output([1, 2, 3])
                    written += 1
                return written > 0

            eventually(write, "a permit is free")


def test_watches_that_end_while_a_status_changes_do_not_stop_the_server(address: str) -> None:
    """What happened: gRPC's own health servicer held its lock while it sent to a watcher; the end of another
    watch waited for that lock in the thread that reports completed sends. The server deadlocked."""
    health = HealthServicer()
    server = grpc.server(ThreadPoolExecutor(70))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    health.set("", serving=True)
    with socket_dir() as folder:
        server.add_insecure_port(f"unix:{folder}/h")
        server.start()
        for round_ in range(20):
            with connection(f"unix:{folder}/h") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(30)]
                for watch in watches:
                    next(watch)
            health.set("", serving=round_ % 2 == 0)  # while the ends of the watches arrive
        with connection(f"unix:{folder}/h") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status != SERVING
        assert server.stop(None).wait(PATIENCE_S)
