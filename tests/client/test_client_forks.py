"""A client that is used before a fork works in the child, too, over a connection of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import PATIENCE_S, ServeProcess, socket_dir

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

#: runs in a process of its own, which can be killed if it hangs
_FORK = """
import os, sys
from suffixsvc_client import ClientConfig, SuffixClient

client = SuffixClient(sys.argv[1], ClientConfig(step_timeout_s=300, open_timeout_s=300))
words = list(range(11, 19))

def live():
    session = client.namespace("a").open_session([1, 2])
    session.step(words * 2)
    for _ in range(200):
        assert len(session.step(words[:3])) > 0
    assert session.close() is not None
    assert client.server_info().instance_id

live()
child = os.fork()
live()
if not child:
    client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
live()
assert client.counts.empty == {}
client.close()
"""

_FORK_BEFORE_THE_SERVICE = """
import os, sys, time
from suffixsvc_client import ClientConfig, SuffixClient
from support.client_parts import background_threads, waiting_procedures
from support.serving import eventually

settings = ClientConfig(step_timeout_s=0.5, open_timeout_s=0.5, breaker_failures=1000, breaker_pause_s=0.05)
client = SuffixClient(sys.argv[1], settings)
session = client.namespace("a").open_session([1, 2])

def drafts():
    time.sleep(0.02)
    return len(session.step([5, 6, 7])) > 0

# the service is down
eventually(lambda: drafts() or background_threads(), "the background thread began")
child = os.fork()
if not child:
    status = 1
    try:
        eventually(drafts, "the child drafts")
        status = 0
    finally:
        os._exit(status)
print("forked", flush=True)
eventually(drafts, "the parent drafts")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert waiting_procedures(client) <= 1
client.close()
"""

#: without it, a channel of the child may never connect
_ENVIRONMENT = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "1"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.mark.crash
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_forked_process_has_a_connection_of_its_own(folder: Path, transport: str) -> None:
    """Parent and child use the client at the same time; the child's close leaves the parent's alone."""
    with ServeProcess(folder, listen=(f"unix:{folder}/s.sock", "127.0.0.1:0")) as service:
        service.start()
        [address] = [
            each for each in service.ready["addresses"] if each.startswith("unix:") == (transport == "unix")
        ]
        command = [sys.executable, "-c", _FORK, address]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=_ENVIRONMENT
        )
    assert ran.returncode == 0, ran.stderr


def test_a_forked_child_opens_its_sessions_itself(folder: Path) -> None:
    """It does not inherit its parent's background thread."""
    service = ServeProcess(folder)
    with service:
        program = subprocess.Popen(
            [sys.executable, "-c", _FORK_BEFORE_THE_SERVICE, service.address],
            stdout=subprocess.PIPE,
            text=True,
            env=_ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "forked\n"
            service.start()
            assert program.wait(PATIENCE_S) == 0
        finally:
            program.kill()
            program.communicate()
