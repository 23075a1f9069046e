"""The stream of the blocking client: order, amounts and timeouts, with a service that stops or repeats."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import (
    LimitExceededError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    UnknownSessionError,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, types_pb2
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from support.serving import PATIENCE_S, ServeProcess, eventually, serving, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
WORDS = [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    limits = Limits(max_message_bytes=4096)
    with SuffixCache() as cache, serving(cache, f"unix:{folder / 's'}", limits) as (_, address):
        yield address


@contextmanager
def transport_to(address: str) -> Iterator[GrpcTransport]:
    transport = GrpcTransport(address)
    try:
        yield transport
    finally:
        transport.close()


def opening() -> pb.StreamRequest:
    return pb.StreamRequest(open=pb.OpenSessionRequest(namespace="a", prompt_token_ids=b"\1\0\0\0"))


def context(session_id: str, tokens: list[int], at: int) -> pb.StreamRequest:
    data = np.array(tokens, "<i4").tobytes()
    return pb.StreamRequest(
        append_context=pb.AppendContextRequest(session_id=session_id, token_ids=data, at=at)
    )


def test_errors_are_those_of_the_service(address: str) -> None:
    with transport_to(address) as transport:
        close = pb.StreamRequest(close=pb.CloseSessionRequest(session_id="absent"))
        [reply] = transport.exchange([close], PATIENCE_S)
        assert isinstance(wire.error_from_detail(reply.error), UnknownSessionError)
        with pytest.raises(LimitExceededError):
            transport.exchange([context("absent", [1] * 2000, 0)], PATIENCE_S)
        assert transport.exchange([opening()], PATIENCE_S)[0].open.session_id, "a new stream"
        with pytest.raises(ServiceTimeoutError):
            transport.exchange([opening()], 1e-9)
        transport.close()
        for act in (lambda: transport.exchange([opening()], 1.0), lambda: transport.post([opening()])):
            with pytest.raises(ServiceUnavailableError, match="the client is closed"):
                act()


def test_many_messages_at_once(address: str) -> None:
    """More than the buffers of both sides hold: both must go on reading."""
    with transport_to(address) as transport:
        [opened] = transport.exchange([opening()], PATIENCE_S)
        requests = [context(opened.open.session_id, [1] * 800, 1 + 800 * n) for n in range(1000)]
        replies = transport.exchange(requests, PATIENCE_S)
        assert [reply.append_context.length for reply in replies] == [1 + 800 * (n + 1) for n in range(1000)]


def test_messages_that_want_no_reply_are_not_answered(address: str) -> None:
    with transport_to(address) as transport:
        [opened] = transport.exchange([opening()], PATIENCE_S)
        unanswered, answered = (context(opened.open.session_id, [1] * 8, 1 + 8 * n) for n in range(2))
        unanswered.no_reply = True
        [reply] = transport.exchange([answered], PATIENCE_S)
        assert reply.error.code == types_pb2.ERROR_CODE_APPEND_GAP
        transport.post([unanswered])
        [reply] = transport.exchange([answered], PATIENCE_S)  # replies come in the order of the messages
        assert reply.append_context.length == 17


def test_a_session_that_changes_threads_keeps_its_order(address: str) -> None:
    """Context posted by one thread arrives before another thread's step."""
    with (
        SuffixClient(address, PATIENT) as client,
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
    """A stopped service reads nothing: context that does not fit the buffers waits in the client."""
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
def test_a_step_does_not_wait_for_another_threads_wait(folder: Path) -> None:
    settings = ClientConfig(step_timeout_s=0.05, call_timeout_s=300, open_timeout_s=300)
    with (
        ServeProcess(folder) as service,
        ThreadPoolExecutor(1) as pool,
        SuffixClient(service.start().address, settings) as client,
    ):
        ending, staying = (client.namespace("a").open_session([n]) for n in (1, 2))
        ending.step(WORDS)
        staying.step(WORDS)
        service.send(signal.SIGSTOP)
        try:
            closing = pool.submit(ending.close)
            assert len(staying.step([5])) == 0
            assert not closing.done()
        finally:
            service.send(signal.SIGCONT)
        closing.result()


class _RepeatingService(suffix_cache_pb2_grpc.SuffixCacheServicer):
    """Answers the first message of a stream without end."""

    def Stream(self, request_iterator: Iterator[pb.StreamRequest], context: Any) -> Iterator[pb.StreamReply]:
        first = next(request_iterator)
        while context.is_active():
            yield pb.StreamReply(id=first.id, steps=pb.StepBatchReply())


def test_endless_old_answers_end_with_the_timeout(folder: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    suffix_cache_pb2_grpc.add_SuffixCacheServicer_to_server(_RepeatingService(), server)
    server.add_insecure_port(f"unix:{folder}/r")
    server.start()
    try:
        with transport_to(f"unix:{folder}/r") as transport:
            assert transport.exchange([opening()], PATIENCE_S)
            for _ in range(5):
                with pytest.raises(ServiceTimeoutError):
                    transport.exchange([opening()], 0.05)
            assert transport.late_replies == 0
    finally:
        server.stop(None).wait()
