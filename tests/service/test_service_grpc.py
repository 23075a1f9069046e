"""The service over real gRPC: statuses, metadata, message limits, health, reflection, streams."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.service import server as server_module
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SERVICE_NAME, SuffixServer
from suffixsvc.service.sessions import step_batch
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, types_pb2
from suffixsvc_client import SuffixClient
from support.engine_parts import parts_of
from support.serving import eventually, serving, socket_dir

LIMITS = Limits(max_message_bytes=64 << 10, max_session_tokens=12_000)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def service() -> Iterator[tuple[SuffixServer, grpc.Channel]]:
    with (
        SuffixCache(limits=LIMITS) as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock", LIMITS) as (server, address),
        grpc.insecure_channel(address) as channel,
    ):
        yield server, channel


@pytest.fixture
def channel(service: tuple[SuffixServer, grpc.Channel]) -> grpc.Channel:
    return service[1]


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return suffix_cache_pb2_grpc.SuffixCacheStub(channel)


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


class Stream:
    """One stream that waits for each reply."""

    def __init__(self, stub: Any) -> None:
        self._requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
        self.replies = stub.Stream(iter(self._requests.get, None), timeout=300)

    def ask(self, **request: Any) -> pb.StreamReply:
        self._requests.put(pb.StreamRequest(id=1, **request))
        reply: pb.StreamReply = next(self.replies)
        return reply

    def step(self, session_id: str, *ids: int) -> pb.StepItem:
        item = pb.StepRequest(session_id=session_id, new_token_ids=tokens(*ids), max_draft_tokens=4)
        return self.ask(steps=pb.StepBatch(items=[item])).steps.items[0]

    def end(self) -> None:
        self._requests.put(None)


def refusal(call: Any, request: Any) -> tuple[grpc.StatusCode, types_pb2.ErrorDetail]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=300)
    metadata = dict(caught.value.trailing_metadata() or ())
    return caught.value.code(), types_pb2.ErrorDetail.FromString(metadata[wire.ERROR_METADATA_KEY])


def test_errors_are_statuses_with_details(stub: Any) -> None:
    code, detail = refusal(stub.Step, pb.StepRequest(session_id="absent"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert detail.code == types_pb2.ERROR_CODE_UNKNOWN_SESSION
    assert detail.remedy
    code, detail = refusal(stub.OpenSession, pb.OpenSessionRequest(namespace="a", prompt_token_ids=b"123"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert detail.code == types_pb2.ERROR_CODE_INVALID_TOKENS
    long = tokens(*range(LIMITS.max_session_tokens + 1))
    code, detail = refusal(stub.OpenSession, pb.OpenSessionRequest(namespace="a", prompt_token_ids=long))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail.code == types_pb2.ERROR_CODE_LIMIT_EXCEEDED


def test_a_defect_is_reported_without_its_details(
    service: tuple[SuffixServer, grpc.Channel], stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(step_batch, "native_step", broken)
    code, detail = refusal(stub.Step, pb.StepRequest(session_id="x"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in str(detail)
    item = Stream(stub).step("x", 1)
    assert item.error.error.code == types_pb2.ERROR_CODE_INTERNAL
    assert "secret" not in str(item)


def test_messages_over_the_limit_are_refused(stub: Any) -> None:
    big = pb.OpenSessionRequest(namespace="a", prompt_token_ids=bytes(LIMITS.max_message_bytes + 4))
    with pytest.raises(grpc.RpcError) as caught:
        stub.OpenSession(big, timeout=300)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_session_outlives_its_stream(stub: Any) -> None:
    first = Stream(stub)
    session = first.ask(open=pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(1))).open.session_id
    assert first.step(session, 5, 6, 5, 6).reply.length == 5
    first.replies.cancel()
    second = Stream(stub)
    assert second.step(session, 5).reply.length == 6
    assert stub.Step(pb.StepRequest(session_id=session), timeout=300).length == 6
    second.end()
    assert list(second.replies) == []


def test_one_bad_item_does_not_end_the_stream(stub: Any) -> None:
    stream = Stream(stub)
    session = stream.ask(open=pb.OpenSessionRequest(namespace="a")).open.session_id
    assert stream.step("absent", 5).error.error.code == types_pb2.ERROR_CODE_UNKNOWN_SESSION
    assert stream.ask().error.code == types_pb2.ERROR_CODE_INVALID_INPUT
    assert stream.step(session, 5).reply.length == 1


def test_streams_have_a_limit_of_their_own() -> None:
    with SuffixCache() as cache, socket_dir() as folder:
        server = SuffixServer(cache, [parse_address(f"unix:{folder}/s.sock")], max_streams=1)
        [address] = server.start()
        with grpc.insecure_channel(address) as channel:
            stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
            first = Stream(stub)
            assert first.ask(open=pb.OpenSessionRequest(namespace="a")).open.session_id
            with pytest.raises(grpc.RpcError) as caught:
                Stream(stub).ask(open=pb.OpenSessionRequest(namespace="a"))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=300).instance_id
            first.end()
            list(first.replies)
            assert Stream(stub).ask(open=pb.OpenSessionRequest(namespace="a")).open.session_id
        server.drain()


def test_a_client_that_never_reads_does_not_block_shutdown() -> None:
    """Its answers fill the buffers of both sides; the server stops all the same."""
    with SuffixCache() as cache, socket_dir() as folder:
        server = SuffixServer(cache, [parse_address(f"unix:{folder}/s.sock")])
        [address] = server.start()
        taken, many = 0, pb.StepBatch(items=[pb.StepRequest(session_id="absent")] * 200)

        def requests() -> Iterator[pb.StreamRequest]:
            nonlocal taken
            while True:
                taken += 1
                yield pb.StreamRequest(id=1, steps=many)

        with grpc.insecure_channel(address) as channel:
            replies = suffix_cache_pb2_grpc.SuffixCacheStub(channel).Stream(requests())
            assert len(next(replies).steps.items) == 200

            def stuck() -> bool:
                now = taken
                time.sleep(0.5)
                return now > 10 and taken == now

            eventually(stuck, "the service reads no more")
            server.drain()
            assert not os.listdir(folder)


def test_outputs_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LONGEST_EXPIRY_PERIOD_SECONDS", 0.05)
    with SuffixCache() as cache, socket_dir() as folder:
        keep = cache.namespace("a").add_output([1, 2, 3])
        with serving(cache, f"unix:{folder}/s.sock") as (_, address), SuffixClient(address) as client:
            client.namespace("a").add_output([4, 5, 6], ttl_seconds=1)
            eventually(lambda: client.stats().outputs == 1, "the output is forgotten")
        assert [row.output_id for row in parts_of(cache).store.scan()] == [keep]


def test_a_client_that_vanishes_during_an_upload_affects_no_other(stub: Any) -> None:
    stop = queue.SimpleQueue[None]()

    def requests() -> Iterator[pb.AddOutputsRequest]:
        yield pb.AddOutputsRequest(namespace="a", outputs=[pb.OutputItem(token_ids=tokens(1, 2))])
        stop.get()

    call = stub.AddOutputs.future(requests())
    call.cancel()
    stop.put(None)
    assert stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=300).instance_id


def test_health_and_reflection(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE_NAME):
        assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=300).status == SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    [reply] = reflection.ServerReflectionInfo(iter([request]), timeout=300)
    names = {service.name for service in reply.list_services_response.service}
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names


def test_draining_is_seen_before_the_end(service: tuple[SuffixServer, grpc.Channel], stub: Any) -> None:
    server, channel = service
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=300)
    assert next(watch).status == SERVING
    stream = Stream(stub)
    session = stream.ask(open=pb.OpenSessionRequest(namespace="a")).open.session_id
    stream.step(session, 5, 6)
    assert server.drain() == 1
    assert next(watch).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stream.ask()
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_new_calls_are_refused_while_a_task_still_runs(
    service: tuple[SuffixServer, grpc.Channel], stub: Any
) -> None:
    """A drain waits for an eviction that has begun, which may take long; no session is opened meanwhile."""
    server, _ = service
    begun, release = threading.Event(), threading.Event()
    task = PeriodicTask("evict", lambda: (begun.set(), release.wait()), period_seconds=3600)
    server.handlers.background_tasks = [task]
    task.start()
    task.wake()
    assert begun.wait(300)
    drain = threading.Thread(target=server.drain)
    drain.start()

    def outcome() -> grpc.StatusCode:
        call = stub.OpenSession.future(pb.OpenSessionRequest(namespace="a"), timeout=300)
        return call.code()  # after its end

    refused = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    eventually(lambda: outcome() in refused, "new calls are refused")
    assert drain.is_alive()
    release.set()
    drain.join()
