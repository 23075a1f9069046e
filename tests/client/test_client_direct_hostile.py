"""The direct socket with a service that sends malformed, late or no answers."""

from __future__ import annotations

import signal
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suffixsvc.errors import LimitExceededError, ProtocolError, ServiceTimeoutError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX, GREETING, frame
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.transport.direct import UnixTransport
from support.direct import opening
from support.serving import ServeProcess, eventually, socket_dir

WORDS = [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


class ScriptedService:
    """A service that greets, then sends scripted answers."""

    def __init__(self, folder: Path, answers: list[bytes], greeting: bytes = GREETING) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(folder / "s") + DIRECT_SUFFIX)
        self.listener.listen()
        self.pool = ThreadPoolExecutor(1)
        self.done = self.pool.submit(self._serve, answers, greeting)

    def _serve(self, answers: list[bytes], greeting: bytes) -> None:
        caller, _ = self.listener.accept()
        with caller:
            caller.sendall(greeting)
            for answer in answers:
                if not caller.recv(1 << 16):
                    return
                caller.sendall(answer)
            while caller.recv(1 << 16):
                pass

    def __enter__(self) -> ScriptedService:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self.done.result(300)
        self.pool.shutdown()


def reply_bytes(number: int) -> bytes:
    return frame(pb.StreamReply(id=number, steps=pb.StepBatchReply()).SerializeToString())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply_bytes(9), ProtocolError),
        (reply_bytes(0), ProtocolError),
        (frame(b"\xff\xff\xff"), ProtocolError),
        (struct.pack("<I", (1 << 32) - 1), LimitExceededError),
    ],
)
def test_malformed_answers_end_the_connection(folder: Path, answer: bytes, kind: type[SuffixError]) -> None:
    transport = UnixTransport(f"unix:{folder / 's'}")
    with ScriptedService(folder, [answer]):
        with pytest.raises(kind):
            transport.exchange([opening(0)], 300.0)
        transport.close()


def test_a_late_answer_is_dropped_and_counted(folder: Path) -> None:
    transport = UnixTransport(f"unix:{folder / 's'}")
    answers = [b"", reply_bytes(1) + reply_bytes(2), b"", reply_bytes(3) + reply_bytes(4)]
    with ScriptedService(folder, answers):
        with pytest.raises(ServiceTimeoutError, match=r"within 0\.05 s"):
            transport.exchange([opening(0)], 0.05)
        assert transport.exchange([opening(0)], 300.0)[0].id == 2
        assert transport.late_replies == 1
        transport.post([opening(0)])
        time.sleep(0.05)  # otherwise both messages may arrive in one read
        assert transport.exchange([opening(0)], 300.0)[0].id == 4
        assert transport.late_replies == 1  # no caller waited for the third
        transport.close()


def test_a_silent_server_delays_by_the_timeout_only(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(folder / "s") + DIRECT_SUFFIX)
        silent.listen()
        transport = UnixTransport(f"unix:{folder / 's'}")
        for _ in range(2):
            with pytest.raises(ServiceTimeoutError):
                transport.exchange([opening(0)], 0.05)
        transport.close()


@pytest.mark.crash
def test_a_service_that_is_stopped_and_continued(folder: Path) -> None:
    hasty = ClientConfig(step_timeout_s=0.05, breaker_failures=100)
    with ServeProcess(folder) as service, SuffixClient(service.start().address, hasty) as client:
        session = client.namespace("a").open_session([1, 2, 3])
        eventually(lambda: len(session.step(WORDS)) > 0, "it drafts")
        service.send(signal.SIGSTOP)
        for word in WORDS[:3]:
            assert len(session.step([word])) == 0
        service.send(signal.SIGCONT)
        eventually(lambda: len(session.step([])) > 0, "it drafts again")
        eventually(lambda: session.step([]) is not None and client.counts.late_replies >= 3, "late replies")
