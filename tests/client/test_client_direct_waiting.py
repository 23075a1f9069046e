"""Timeouts and resources of the direct socket: no call exceeds its timeout, and no connection leaks."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceError, ServiceTimeoutError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX, GREETING, frame
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.direct import UnixTransport
from support.client_parts import background_threads, waiting_procedures, wrap_socket
from support.direct import opening
from support.serving import ServeProcess, eventually, serving, socket_dir

#: a timeout of 50 ms must be over by then, however busy the machine
SOON = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def context(session_id: str, tokens: list[int], at: int) -> pb.StreamRequest:
    request = pb.StreamRequest()
    request.append_context.session_id = session_id
    request.append_context.token_ids = np.array(tokens, np.int32).tobytes()
    request.append_context.at = at
    return request


def step_of(session_id: str, tokens: list[int]) -> pb.StreamRequest:
    request = pb.StreamRequest()
    request.steps.items.add(
        session_id=session_id, new_token_ids=np.array(tokens, np.int32).tobytes(), max_draft_tokens=4
    )
    return request


def test_a_step_does_not_wait_for_another_threads_wait(folder: Path) -> None:
    """A session that changes threads waits for what was posted on the old one's connection, up to the
    deadline of a close. The old thread's next step, of another session, has its own timeout."""
    with ServeProcess(folder) as service, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        settings = ClientConfig(step_timeout_s=0.05, call_timeout_s=300, open_timeout_s=300)
        with SuffixClient(service.start().address, settings) as client:
            moving = one.submit(client.namespace("a").open_session, [1, 2]).result()
            staying = one.submit(client.namespace("a").open_session, [3, 4]).result()
            for session in (moving, staying):
                one.submit(session.step, [5, 6, 7]).result()
            two.submit(client.namespace("a").open_session, [9]).result()
            service.send(signal.SIGSTOP)
            try:
                one.submit(moving.append_context, [8, 9]).result()
                closing = two.submit(moving.close)
                time.sleep(0.05)
                before = time.monotonic()
                assert len(one.submit(staying.step, [5]).result()) == 0
                assert time.monotonic() - before < SOON
                assert not closing.done()
            finally:
                service.send(signal.SIGCONT)
            closing.result()


def test_grpc_gets_the_rest_of_the_timeout(folder: Path) -> None:
    """A socket that fails late, and gRPC that is connected but silent: one timeout for both."""
    with ServeProcess(folder) as service:
        path = f"{service.start().socket}{DIRECT_SUFFIX}"
        os.unlink(path)
        late = threading.Event()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()

            def greet_slowly() -> None:
                with suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        with connection:
                            if late.is_set():
                                connection.sendall(GREETING[:5])
                                time.sleep(5.4)

            threading.Thread(target=greet_slowly, daemon=True).start()
            transport = UnixTransport(service.address)
            try:
                transport.exchange([opening(0)], 300.0)  # over gRPC
                service.send(signal.SIGSTOP)
                late.set()
                time.sleep(1.1)  # the direct socket is tried again
                before = time.monotonic()
                with pytest.raises(ServiceError):
                    transport.exchange([opening(0)], 6.0)
                assert time.monotonic() - before < 10.5, "the socket and gRPC took a timer each"
            finally:
                service.send(signal.SIGCONT)
                transport.close()


def test_endless_old_answers_end_with_the_timeout(folder: Path) -> None:
    """Valid answers without end, to a request that is answered already."""
    address = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address + DIRECT_SUFFIX)
        listener.listen()

        def repeat() -> None:
            answer = frame(pb.StreamReply(id=1, steps=pb.StepBatchReply()).SerializeToString())
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.sendall(GREETING)
                        connection.recv(1 << 16)
                        while True:
                            connection.sendall(answer * 20_000)

        threading.Thread(target=repeat, daemon=True).start()
        transport = UnixTransport(f"unix:{address}")
        try:
            transport.exchange([opening(0)], SOON)
            for _ in range(5):
                before = time.monotonic()
                with suppress(SuffixError):
                    transport.exchange([opening(0)], 0.05)
                assert time.monotonic() - before < SOON
        finally:
            transport.close()


def test_ended_threads_leave_no_connection(folder: Path) -> None:
    """They posted messages without waiting, and their sessions are not used again."""
    settings = ClientConfig(step_timeout_s=300, open_timeout_s=300)
    with (
        SuffixCache() as cache,
        serving(cache, f"unix:{folder / 's'}") as (_, address),
        SuffixClient(address, settings) as client,
    ):

        def live(number: int) -> None:
            session = client.namespace("a").open_session([number])
            session.step([1, 2, 3])
            session.append_context([4, 5])

        def lived(number: int) -> int:
            """Files that are open afterwards."""
            thread = threading.Thread(target=live, args=[number])
            thread.start()
            thread.join()
            gc.collect()
            return len(os.listdir("/proc/self/fd"))

        before = lived(0)
        for number in range(1, 40):
            lived(number)
        eventually(lambda: lived(40) <= before + 4, "connections of ended threads are closed")


def test_messages_of_two_threads_stay_in_order(folder: Path) -> None:
    """The second thread's messages are not posted while those of the first are unanswered."""
    with ServeProcess(folder) as service, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        transport = UnixTransport(service.start().address)
        try:
            opened = one.submit(transport.exchange, [opening(0)], 300.0).result()[0].open
            other = two.submit(transport.exchange, [opening(1)], 300.0).result()[0].open
            assert other.session_id != opened.session_id
            service.send(signal.SIGSTOP)
            one.submit(transport.post, [context(opened.session_id, [7, 8], opened.length)]).result()
            with pytest.raises(ServiceError, match="not answered yet"):
                two.submit(transport.post, [context(opened.session_id, [9], opened.length + 2)]).result()
            service.send(signal.SIGCONT)
            request = context(opened.session_id, [9], opened.length + 2)
            reply = two.submit(transport.exchange, [request], 300.0).result()[0]
            assert reply.append_context.length == opened.length + 3
        finally:
            service.send(signal.SIGCONT)
            transport.close()


class _Interrupted:
    """A socket in which a signal handler raises after half of the data is sent."""

    def __init__(self, around: Any) -> None:
        self._around, self.armed = around, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._around, name)

    def send(self, data: bytes) -> int:
        if self.armed:
            self.armed = False
            self._around.send(data[: len(data) // 2])
            raise KeyboardInterrupt
        sent: int = self._around.send(data)
        return sent


def test_a_partial_message_ends_the_connection(folder: Path) -> None:
    with SuffixCache() as cache, serving(cache, f"unix:{folder / 's'}") as (_, address):
        transport = UnixTransport(address)
        try:
            opened = transport.exchange([opening(0)], 300.0)[0].open
            connection = wrap_socket(transport, _Interrupted)
            with pytest.raises(KeyboardInterrupt):
                transport.post([context(opened.session_id, [7] * 100, opened.length)])
            assert not connection.usable
            [reply] = transport.exchange([step_of(opened.session_id, [5])], 300.0)
            assert reply.steps.items[0].reply.length == opened.length + 1, "nothing was stored"
        finally:
            transport.close()


def test_a_forked_child_opens_its_sessions_itself(folder: Path) -> None:
    """It does not inherit its parent's background thread."""
    service = ServeProcess(folder)
    settings = ClientConfig(
        step_timeout_s=0.5, open_timeout_s=0.5, breaker_failures=1000, breaker_pause_s=0.05
    )
    with service, SuffixClient(service.address, settings) as client:
        session = client.namespace("a").open_session([1, 2])
        hear, say = os.pipe()

        def drafts() -> bool:
            time.sleep(0.02)
            return len(session.step([5, 6, 7])) > 0

        # the service is down
        eventually(lambda: drafts() or background_threads(), "the background thread began")

        child = os.fork()
        if not child:
            status = 1
            try:
                os.read(hear, 1)  # until the service starts: gRPC does not survive a fork
                eventually(drafts, "the child drafts")
                status = 0
            finally:
                os._exit(status)
        service.start()
        os.write(say, b".")
        eventually(drafts, "the parent drafts")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert waiting_procedures(client) <= 1
        os.close(hear)
        os.close(say)


def test_a_draft_longer_than_requested_is_refused() -> None:
    from suffixsvc_client.testing import FakeTransport

    class Generous(FakeTransport):
        def exchange(self, requests: Any, timeout_s: float) -> Any:
            replies = super().exchange(requests, timeout_s)
            for reply in replies:
                for item in reply.steps.items:
                    draft = item.reply.draft
                    draft.token_ids = np.full(600, 3, np.int32).tobytes()
                    draft.probs = np.full(600, 0.9, np.float32).tobytes()
                    draft.sources = b"\1" * 600
                    draft.match_lens = np.full(600, 9, np.int32).tobytes()
                    draft.parents = b""
            return replies

    with SuffixCache() as cache, SuffixClient(transport=Generous(cache)) as client:
        session = client.namespace("a").open_session([1, 2])
        assert len(session.step([5], 4)) == 0
        assert client.counts.empty, "and it is counted"


def test_a_timeout_is_reported_as_such(folder: Path) -> None:
    """Even if no time is left for the direct socket."""
    with SuffixCache() as cache, serving(cache, f"unix:{folder / 's'}") as (_, address):
        transport = UnixTransport(address)
        try:
            with pytest.raises(ServiceTimeoutError):
                transport.exchange([opening(0)], 1e-9)
        finally:
            transport.close()
