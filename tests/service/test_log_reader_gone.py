"""The program that reads the service's log has ended: `suffixsvc serve 2>&1 | head`."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from suffixsvc_client import ClientConfig, SuffixClient
from support.serving import ServeProcess, socket_dir

from suffixsvc.errors import UnknownNamespaceError


@pytest.fixture
def unread() -> Iterator[ServeProcess]:
    """A service whose stderr is a pipe that no process reads."""
    with socket_dir() as folder, ServeProcess(folder) as service:
        service.start()
        assert service.process is not None
        assert service.process.stderr is not None
        service.process.stderr.close()
        yield service


def test_calls_are_answered_though_no_process_reads_the_log(unread: ServeProcess) -> None:
    """A refused call is logged before it is answered. The log line raised BrokenPipeError: the client was
    told UNKNOWN in place of the error, and the service did not end with 0."""
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
