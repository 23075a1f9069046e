"""Health and clients of a service whose store fails: drafting goes on, and closes can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc.errors import StoreError
from suffixsvc.service.server import DURABILITY_NAME, SERVICE_NAME
from suffixsvc_client import ClientConfig, SuffixClient
from support.failing_disk import MAX_SESSIONS, FailingDisk, opened_cache, small_limits
from support.serving import PATIENCE_S, eventually, serving, socket_dir

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


def test_health_reports_drafting_and_durability_separately(folder: Path, disk: FailingDisk) -> None:
    with (
        opened_cache(folder, disk, small_limits()) as cache,
        serving(cache, f"unix:{folder}/s", small_limits()) as (_, address),
        grpc.insecure_channel(address) as channel,
        SuffixClient(address, ClientConfig(step_timeout_s=300, open_timeout_s=300)) as client,
    ):
        stub = health_pb2_grpc.HealthStub(channel)

        def status(name: str) -> int:
            request = health_pb2.HealthCheckRequest(service=name)
            return int(stub.Check(request, timeout=PATIENCE_S).status)

        assert status(DURABILITY_NAME) == SERVING
        assert client.server_info().store_failure is None
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=DURABILITY_NAME), timeout=PATIENCE_S)
        assert next(watch).status == SERVING
        disk.failing.set()
        for _ in range(2 * MAX_SESSIONS):  # twice the session limit
            session = client.namespace("a").open_session([1, 2, 3])
            session.step([4, 5, 6])
            with pytest.raises(StoreError):
                session.close()
        assert client.counts.steps == 2 * MAX_SESSIONS, "drafting went on"
        assert next(watch).status == NOT_SERVING
        assert status(DURABILITY_NAME) == NOT_SERVING
        assert status("") == status(SERVICE_NAME) == SERVING
        assert isinstance(client.server_info().store_failure, StoreError)
        stats = client.stats()
        assert stats.store_failing
        assert (stats.unkept_sessions, stats.lost_sessions) == (MAX_SESSIONS, MAX_SESSIONS)
        disk.failing.clear()
        assert next(watch).status == SERVING
        assert client.server_info().store_failure is None
        assert not client.stats().store_failing


def test_a_client_can_close_after_the_store_recovered(folder: Path, disk: FailingDisk) -> None:
    """Also if the service has released the session: the client opens it again with its text."""
    with (
        opened_cache(folder, disk, small_limits()) as cache,
        serving(cache, f"unix:{folder}/s", small_limits()) as (_, address),
        SuffixClient(address, ClientConfig(step_timeout_s=300, open_timeout_s=300)) as client,
    ):
        disk.failing.set()
        sessions = [client.namespace("a").open_session([1, 2, n]) for n in range(MAX_SESSIONS)]
        for n, session in enumerate(sessions):
            session.step([n, 5, 6])
            with pytest.raises(StoreError):
                session.close()
        pushing = [client.namespace("b").open_session([n]) for n in range(MAX_SESSIONS)]
        assert client.stats().lost_sessions == MAX_SESSIONS, "they were released for new sessions"
        for session in pushing:
            session.close(commit=False)
        disk.failing.clear()
        for session in sessions:
            eventually(lambda session=session: closes(session.close), "the output is stored")
        assert client.namespace("a").stats().outputs == MAX_SESSIONS + 1


def closes(close: Callable[[], object]) -> bool:
    try:
        return close() is not None
    except StoreError:
        return False
