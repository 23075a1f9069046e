"""The client with real services that die, hang, restart or send garbage: the cache cannot hurt.

No test here asserts on time. That a step returns at all while the service is stopped shows that the client
did not wait for it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import ProtocolError, ServiceError, ServiceUnavailableError, SuffixError
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc_client import AsyncSuffixClient, ClientConfig, ClientStats, EmptyReason, SuffixClient
from suffixsvc_client.transport.interface import CHANNEL_OPTIONS as OPTIONS
from support.client_parts import stream_of
from support.engine_parts import parts_of
from support.serving import PATIENCE_S, Blocking, ServeProcess, event_loop, eventually, socket_dir

pytestmark = pytest.mark.crash

WORDS = [11, 12, 13, 14, 15, 16, 17, 18]
#: short timers, a breaker that is quick to try again: the faults are many and the tests few
HASTY = ClientConfig(
    step_timeout_s=0.05, call_timeout_s=300, breaker_failures=3, breaker_pause_s=0.01, breaker_max_pause_s=0.1
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def service(folder: Path) -> Iterator[ServeProcess]:
    with ServeProcess(folder) as serve:
        yield serve.start()


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """A client of either kind with the blocking API."""
    clients: list[Any] = []
    with event_loop() as loop:

        def make(address: str) -> Any:
            client = (
                Blocking(AsyncSuffixClient(address, HASTY), loop)
                if request.param == "aio"
                else SuffixClient(address, HASTY)
            )
            clients.append(client)
            return client

        yield make
        for client in clients:
            client.close()


def counts(client: Any) -> ClientStats:
    stats: ClientStats = client.counts
    return stats


def drafts_again(session: Any) -> None:
    eventually(lambda: len(session.step([])) > 0, "the session drafts again")


def test_killed(service: ServeProcess, connect: Callable[[str], Any]) -> None:
    client = connect(service.address)
    session = client.namespace("a").open_session([1, 2, 3])
    session.step(WORDS * 3)
    service.kill()
    for word in WORDS:
        assert len(session.step([word])) == 0
    assert session.length == 3 + 4 * len(WORDS)
    # a step's timer may end before a busy machine answers, or reports the connection that broke
    known = {EmptyReason.UNAVAILABLE, EmptyReason.BREAKER_OPEN, EmptyReason.TIMEOUT}
    assert counts(client).empty.keys() <= known
    with pytest.raises(ServiceError):
        session.close()
    assert not session.closed


def test_killed_and_started_again(service: ServeProcess, connect: Callable[[str], Any]) -> None:
    client = connect(service.address)
    session = client.namespace("a").open_session([1, 2, 3])
    session.step(WORDS * 2)
    session.append_context([7, 7])
    service.kill()
    session.step(WORDS[:4])
    session.append_context([8, 8])
    session.step(WORDS[:2])
    service.start()
    drafts_again(session)
    assert counts(client).reopened == 1
    output_id = session.close()
    service.terminate()
    with SuffixCache(service.folder / "data") as cache:
        [row] = parts_of(cache).store.scan()
        assert row.output_id == output_id
        assert row.output.token_ids.tolist() == WORDS * 2 + WORDS[:4] + WORDS[:2]
        assert row.output.segment_lens == (16, 4, 2)
        assert not row.output.incomplete


def test_drained_and_started_again(service: ServeProcess, connect: Callable[[str], Any]) -> None:
    client = connect(service.address)
    session = client.namespace("a").open_session([1, 2, 3])
    session.step(WORDS * 2)
    assert service.terminate() == 0
    session.step(WORDS[:1])
    service.start()
    drafts_again(session)
    assert session.close() is not None


def test_paused(service: ServeProcess, connect: Callable[[str], Any]) -> None:
    client = connect(service.address)
    session = client.namespace("a").open_session([1, 2, 3])
    session.step(WORDS * 3)
    service.send(signal.SIGSTOP)
    for word in WORDS:
        assert len(session.step([word])) == 0
    assert EmptyReason.TIMEOUT in counts(client).empty
    other = client.namespace("a").open_session([4])  # does not wait, either
    assert len(other.step(WORDS[:4])) == 0
    service.send(signal.SIGCONT)
    drafts_again(session)
    eventually(lambda: counts(client).late_replies > 0, "late replies were counted")
    drafts_again(other)
    assert counts(client).reopened == 1, "only the other one was opened later; nothing was lost"
    session.close()
    service.terminate()
    with SuffixCache(service.folder / "data") as cache:
        outputs = [
            row.output.token_ids.tolist() for row in parts_of(cache).store.scan() if not row.output.incomplete
        ]
        assert outputs == [WORDS * 4]


def test_a_missing_service(folder: Path, connect: Callable[[str], Any]) -> None:
    client = connect(f"unix:{folder}/s.sock")
    session = client.namespace("a").open_session([1])
    assert len(session.step(WORDS)) == 0
    with pytest.raises(ServiceUnavailableError):
        client.server_info()
    with pytest.raises(ServiceUnavailableError):
        client.namespace("a").add_output(WORDS)
    assert session.close(commit=False) is None


def test_a_service_that_starts_late(folder: Path, connect: Callable[[str], Any]) -> None:
    with ServeProcess(folder) as serve:
        client = connect(serve.address)
        session = client.namespace("a").open_session([1], output_token_ids=WORDS * 2)
        session.step(WORDS[:2])
        serve.start()
        drafts_again(session)
        assert session.close() is not None


# ------------------------------------------------------------------------------------------- garbage


class ScriptedService(grpc.GenericRpcHandler):
    """A service that opens sessions correctly and answers steps with bytes of the test's choice."""

    def __init__(self, answer: Callable[[pb.StreamRequest], bytes]) -> None:
        self.answer = answer

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        match details.method.rpartition("/")[2]:
            case "OpenSession":
                return grpc.unary_unary_rpc_method_handler(self.open)
            case "Stream":
                return grpc.stream_stream_rpc_method_handler(self.stream)
        return None

    def open(self, data: bytes, _: object) -> bytes:
        request = pb.OpenSessionRequest.FromString(data)
        length = (len(request.prompt_token_ids) + len(request.output_token_ids)) // 4
        return pb.OpenSessionReply(session_id=request.session_id, length=length).SerializeToString()

    def stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for data in requests:
            try:
                yield self.answer(pb.StreamRequest.FromString(data))
            except SuffixError as error:
                context.abort(grpc.StatusCode[wire.status_of(error)[1]], str(error))


def proper(request: pb.StreamRequest) -> pb.StreamReply:
    item = request.steps.items[0]
    draft = types_pb2.Draft(
        token_ids=np.array([5, 6], "<i4").tobytes(),
        probs=np.array([0.5, 0.5], "<f4").tobytes(),
        sources=bytes([1, 1]),
        match_lens=np.array([2, 2], "<i4").tobytes(),
    )
    length = item.at + len(item.new_token_ids) // 4
    reply = pb.StepReply(session_id=item.session_id, seq=item.seq, draft=draft, length=length)
    return pb.StreamReply(id=request.id, steps=pb.StepBatchReply(items=[pb.StepItem(reply=reply)]))


def edited(edit: Callable[[pb.StreamReply, pb.StepReply], object]) -> Callable[[pb.StreamRequest], bytes]:
    def answer(request: pb.StreamRequest) -> bytes:
        reply = proper(request)
        edit(reply, reply.steps.items[0].reply)
        return reply.SerializeToString()

    return answer


def raising(error: type[SuffixError]) -> Callable[[pb.StreamRequest], bytes]:
    def answer(_: pb.StreamRequest) -> bytes:
        raise error("scripted")

    return answer


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def ints(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


GARBAGE: dict[str, Callable[[pb.StreamRequest], bytes]] = {
    "not protobuf": lambda _: b"\xff\xff\xff\xff",
    "random": lambda _: bytes(range(256)),
    "empty": lambda _: b"",
    "no items": edited(lambda reply, _: reply.steps.ClearField("items")),
    "too many items": edited(lambda reply, _: reply.steps.items.add()),
    "empty item": edited(lambda reply, _: reply.steps.items[0].Clear()),
    "another id": edited(lambda reply, _: setattr(reply, "id", 99_999)),
    "another session": edited(lambda _, step: setattr(step, "session_id", "other")),
    "another step": edited(lambda _, step: setattr(step, "seq", step.seq + 1)),
    "another length": edited(lambda _, step: setattr(step, "length", 12345)),
    "torn tokens": edited(lambda _, step: setattr(step.draft, "token_ids", b"12345")),
    "negative tokens": edited(lambda _, step: setattr(step.draft, "token_ids", ints(5, -6))),
    "short probs": edited(lambda _, step: setattr(step.draft, "probs", floats(0.5))),
    "nan": edited(lambda _, step: setattr(step.draft, "probs", floats(0.5, float("nan")))),
    "over one": edited(lambda _, step: setattr(step.draft, "probs", floats(0.5, 7.0))),
    "own parent": edited(lambda _, step: setattr(step.draft, "parents", ints(-1, 1))),
    "unknown source": edited(lambda _, step: setattr(step.draft, "sources", bytes([1, 77]))),
    "stream ends with an error": raising(ProtocolError),
    "stream is refused": raising(ServiceUnavailableError),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(folder: Path, connect: Callable[[str], Any], name: str) -> None:
    handler = ScriptedService(lambda request: proper(request).SerializeToString())
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    server.add_insecure_port(f"unix:{folder}/g.sock")
    server.start()
    try:
        client = connect(f"unix:{folder}/g.sock")
        session = client.namespace("a").open_session([1, 2, 3])
        eventually(lambda: session.step([7]).token_ids.tolist() == [5, 6], "proper answers are drafts")
        handler.answer = GARBAGE[name]
        before = session.length
        for word in WORDS:
            draft = session.step([word])
            assert len(draft) == 0
        assert session.length == before + len(WORDS)
        assert counts(client).empty
        handler.answer = lambda request: proper(request).SerializeToString()
        eventually(lambda: session.step([7]).token_ids.tolist() == [5, 6], "proper answers are drafts again")
    finally:
        server.stop(None).wait()


def test_another_service_at_the_address(folder: Path, connect: Callable[[str], Any]) -> None:
    """A gRPC server without our services."""
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_insecure_port(f"unix:{folder}/g.sock")
    server.start()
    try:
        client = connect(f"unix:{folder}/g.sock")
        session = client.namespace("a").open_session([1])
        assert len(session.step(WORDS)) == 0
        with pytest.raises(ProtocolError):
            client.server_info()
    finally:
        server.stop(None).wait()


def test_a_service_may_take_a_second_to_answer_a_connection(service: ServeProcess) -> None:
    """What happened: gRPC limited a first connection attempt to 100 ms, and calls failed at once ("connection
    attempt timed out before receiving SETTINGS frame"): new clients could not reach a service whose machine
    was busy."""
    with ThreadPoolExecutor(1) as pool, SuffixClient(service.address, HASTY) as client:
        service.send(signal.SIGSTOP)
        try:
            answer = pool.submit(client.server_info)
            time.sleep(1)
        finally:
            service.send(signal.SIGCONT)
        assert answer.result(PATIENCE_S).durable


def test_an_idle_client_keeps_its_connection(service: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends pings; a server that treats them as abuse disconnects after the third one."""
    often = {"grpc.keepalive_time_ms": 1_100, "grpc.http2.max_pings_without_data": 0}
    hasty = list({**dict(OPTIONS), **often}.items())
    monkeypatch.setattr("suffixsvc_client.transport.grpc_sync.CHANNEL_OPTIONS", hasty)
    with SuffixClient(service.address, replace(HASTY, step_timeout_s=PATIENCE_S)) as client:
        session = client.namespace("a").open_session(WORDS)
        session.step([WORDS[0]])
        time.sleep(7)
        assert not stream_of(client.runner.transport).ended
        session.step([WORDS[1]])
        assert session.close() is not None
        assert client.counts.empty == {}
