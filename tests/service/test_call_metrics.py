"""Metrics of calls: every call counts once, when it ends, with the status that its client receives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc import SuffixCache
from suffixsvc.service.calls.call_counts import BOUNDS, CallCounts
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from support.access import ControlledService
from support.serving import eventually

OURS = "suffixsvc.v1.SuffixCache/"
HEALTH = "grpc.health.v1.Health/Check"
TIMEOUT_S = 60.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache() as cache, ControlledService(tmp_path, ("alice",)).run(cache) as service:
        yield service


def code_of(call: Any, request: Any, **options: Any) -> str:
    """Name of the status with which a call ends."""
    try:
        reply = call(request, timeout=TIMEOUT_S, **options)
        for _ in reply if hasattr(reply, "__next__") else ():
            pass
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def test_calls_are_counted_by_method_and_status(service: ControlledService) -> None:
    alice = (("authorization", f"Bearer {service.tokens['alice']}"),)
    seen = Counter[tuple[str, str]]()
    with grpc.insecure_channel(service.address) as channel:
        ours = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        health = health_pb2_grpc.HealthStub(channel)

        def call(name: str, request: Any, expected: str, metadata: Any = alice) -> None:
            assert code_of(getattr(ours, name), request, metadata=metadata) == expected
            seen[OURS + name, expected] += 1

        for _ in range(3):
            call("GetServerInfo", pb.GetServerInfoRequest(), "OK")
        call("GetServerInfo", pb.GetServerInfoRequest(), "UNAUTHENTICATED", ())
        call("GetStats", pb.GetStatsRequest(), "PERMISSION_DENIED")
        call("GetStats", pb.GetStatsRequest(namespace="alice/none"), "NOT_FOUND")
        call("Step", pb.StepRequest(session_id="s"), "NOT_FOUND")
        short = pb.OpenSessionRequest(namespace="alice/a", session_id="s", prompt_token_ids=b"123")
        call("OpenSession", short, "INVALID_ARGUMENT")
        call("Stream", iter([pb.StreamRequest(id=1), pb.StreamRequest(id=2)]), "OK")  # two errors in replies
        call("AddOutputs", iter([pb.AddOutputsRequest(namespace="bob/a")]), "PERMISSION_DENIED")
        assert code_of(health.Check, health_pb2.HealthCheckRequest()) == "OK"
        assert code_of(health.Check, health_pb2.HealthCheckRequest(service="none")) == "NOT_FOUND"
        seen.update([(HEALTH, "OK"), (HEALTH, "NOT_FOUND")])
        service.set_policy('[principals."alice"]\nrequests_per_second = 0.0001\n')
        call("ListNamespaces", pb.ListNamespacesRequest(), "OK")
        for _ in range(2):
            call("ListNamespaces", pb.ListNamespacesRequest(), "RESOURCE_EXHAUSTED")
        waiting = ours.Stream(iter(lambda: pb.StreamRequest(id=3), None), metadata=alice)
        next(waiting)
        waiting.cancel()
        seen[OURS + "Stream", "CANCELLED"] += 1
        # a call can be counted after its client has the reply
        eventually(lambda: service.server.handlers.calls.ended() == seen, "all have ended")
    registry = service_registry(service.cache, service.server.handlers)
    for (method, code), calls in seen.items():
        labels = {"method": method, "code": code}
        assert registry.get_sample_value("suffixsvc_calls_total", labels) == calls, labels
    # of calls of one request and one reply
    unary = [method for method, _ in seen.elements() if not method.endswith(("Stream", "AddOutputs"))]
    for method, calls in Counter(unary).items():
        assert registry.get_sample_value("suffixsvc_call_seconds_count", {"method": method}) == calls
    for method in (OURS + "Stream", OURS + "AddOutputs"):
        assert registry.get_sample_value("suffixsvc_call_seconds_count", {"method": method}) is None


def test_steps_on_a_stream_are_not_calls(service: ControlledService) -> None:
    with service.client("alice") as client:
        session = client.namespace("alice/a").open_session([1])
        for token in range(20):
            session.step([token])
        session.close()
        eventually(
            lambda: (OURS + "CloseSession", "OK") in service.server.handlers.calls.ended(), "the close"
        )
        assert service.server.handlers.calls.ended() == {
            (OURS + "OpenSession", "OK"): 1,
            (OURS + "CloseSession", "OK"): 1,
        }


def test_durations_are_in_the_bucket_of_their_bound() -> None:
    counts = CallCounts()
    seconds = [0.0, BOUNDS[0], BOUNDS[0] * 1.01, 0.3, BOUNDS[-1], BOUNDS[-1] * 2]
    for each in seconds:
        counts.add("a/b", "OK", each, unary=True)
    counts.add("a/c", "OK", 1.0, unary=False)
    [(method, found)] = counts.durations().items()
    assert method == "a/b"
    assert found.seconds == pytest.approx(sum(seconds))
    assert found.up_to == (*(sum(each <= bound for each in seconds) for bound in BOUNDS), len(seconds))
