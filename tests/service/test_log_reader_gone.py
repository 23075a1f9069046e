"""The program that reads the service's log has ended (`suffixsvc serve 2>&1 | head`), or reads no longer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from suffixsvc.errors import UnknownNamespaceError
from suffixsvc_client import ClientConfig, SuffixClient
from support.serving import ServeProcess, socket_dir

#: a queue that fewer calls fill than the 1000 lines of a service
_QUEUED_LINES = 100
_SHORT_QUEUE = {"suffixsvc.runtime.log_output.MAX_QUEUED_LINES": _QUEUED_LINES}
#: refused calls that overflow a pipe of 64 KiB and the queue
_REFUSED = _QUEUED_LINES + 600


@pytest.fixture
def unread() -> Iterator[ServeProcess]:
    """A service whose stderr is a pipe that no process reads."""
    with socket_dir() as folder, ServeProcess(folder, from_shell=True) as service:
        service.start()
        assert service.process is not None
        assert service.process.stderr is not None
        service.process.stderr.close()
        yield service


def test_calls_are_answered_though_no_process_reads_the_log(unread: ServeProcess) -> None:
    """A refused call is logged before it is answered. The log line raised BrokenPipeError: the client was
    sent UNKNOWN instead of the error, and the service did not exit with 0."""
    with SuffixClient(unread.address, ClientConfig(call_timeout_s=300)) as client:
        for _ in range(2):
            with pytest.raises(UnknownNamespaceError):
                client.delete_namespace("absent")
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([4, 5, 6])
        assert session.close() is not None
    assert unread.terminate() == 0


def test_a_service_ends_in_order_though_no_process_reads_the_log(unread: ServeProcess) -> None:
    assert unread.process is not None
    unread.send(signal.SIGINT)
    assert unread.process.wait(300) == 0


@pytest.fixture
def stalled() -> Iterator[ServeProcess]:
    """A service whose stderr is a full pipe that no process reads."""
    with socket_dir() as folder, ServeProcess(folder, constants=_SHORT_QUEUE) as service:
        service.start()
        with SuffixClient(service.address, ClientConfig(call_timeout_s=300)) as client:
            for i in range(_REFUSED):
                with pytest.raises(UnknownNamespaceError):
                    client.delete_namespace(f"absent-{i}")
        yield service


def test_a_stalled_log_reader_blocks_neither_calls_nor_exit(stalled: ServeProcess) -> None:
    """Every refused call logs a line. About 240 of them filled the pipe; the next one hung with its thread,
    as did the store's thread at its next line, and SIGTERM no longer ended the process."""
    with SuffixClient(stalled.address, ClientConfig(call_timeout_s=300)) as client:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([4, 5, 6])
        assert session.close() is not None
    stalled.send(signal.SIGTERM)
    assert stalled.process is not None
    assert stalled.process.wait(300) == 0


def test_lines_that_no_process_read_in_time_are_counted(stalled: ServeProcess) -> None:
    """The lines that fit are written in order, then the number of dropped ones, then later lines."""
    assert stalled.process is not None
    assert stalled.process.stderr is not None
    lines = []
    while "lost" not in (lines[-1] if lines else {}):
        lines.append(json.loads(stalled.process.stderr.readline()))
    lost = lines.pop()["lost"]
    refused = [line for line in lines if line["event"] == "call refused"]
    assert len(refused) + lost == _REFUSED
    assert len(refused) >= _QUEUED_LINES
    assert [f"'absent-{i}'" in str(line) for i, line in enumerate(refused)] == [True] * len(refused)
    with (
        SuffixClient(stalled.address, ClientConfig(call_timeout_s=300)) as client,
        pytest.raises(UnknownNamespaceError),
    ):
        client.delete_namespace("later")
    assert "'later'" in stalled.process.stderr.readline()


def test_queued_lines_are_written_in_order_at_exit() -> None:
    """A short program that exits at once loses no line, and the order is preserved."""
    code = (
        "import structlog\n"
        "from suffixsvc.runtime.log_output import queued_log_output\n"
        "from suffixsvc.service.logs import configure_logs\n"
        "configure_logs('json')\n"
        "with queued_log_output():\n"
        "    for i in range(100):\n"
        "        structlog.get_logger().info('event', i=i)\n"
        "structlog.get_logger().info('event', i=100)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line)["i"] for line in ended.stderr.splitlines()] == list(range(101))
