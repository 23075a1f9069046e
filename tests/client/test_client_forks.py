"""A client that is used before a fork works in the child, too, over a connection of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

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

#: children of two threads, while others step
_FORKS_OF_THREADS = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from suffixsvc_client import ClientConfig, SuffixClient

client = SuffixClient(sys.argv[1], ClientConfig(step_timeout_s=300, open_timeout_s=300))
client.server_info()
done = threading.Event()

def write():
    while not done.is_set():
        session = client.namespace("a").open_session([1])
        for token in range(20):
            session.step([token])
        assert session.close() is not None

def fork():
    for _ in range(20):
        child = os.fork()
        if not child:
            os._exit(0 if client.server_info().instance_id else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

with ThreadPoolExecutor(4) as pool:
    writers = [pool.submit(write) for _ in range(2)]
    forks = [pool.submit(fork) for _ in range(2)]
    try:
        for each in forks:
            each.result()
    finally:
        done.set()
    for each in writers:
        each.result()
assert client.counts.empty == {}
client.close()
"""

#: a handler of a signal uses the client in the thread that forks, while the fork waits for a call
_CALL_WITHIN_A_FORK = """
import os, signal, sys, threading, time
from suffixsvc_client import ClientConfig, SuffixClient

client = SuffixClient(sys.argv[1], ClientConfig(call_timeout_s=1, open_timeout_s=0.2))
client.server_info()
handled = []

def handle(*_):
    handled.append(client.namespace("a").open_session([1]))

signal.signal(signal.SIGALRM, handle)
print("connected", flush=True)
sys.stdin.readline()  # the service is stopped

def call():
    try:
        client.server_info()
    except Exception:
        pass

waits = threading.Thread(target=call)
waits.start()
time.sleep(0.1)
signal.setitimer(signal.ITIMER_REAL, 0.2)
child = os.fork()
if not child:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert handled
waits.join()
print("forked", flush=True)
"""

#: without it, a channel of the child may never connect
_ENVIRONMENT = os.environ | {
    "GRPC_ENABLE_FORK_SUPPORT": "1",
    "PYTHONPATH": str(Path(__file__).parents[1]),
}


def _run(source: str, address: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", source, address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=_ENVIRONMENT,
    )
    assert ran.returncode == 0, ran.stderr


@contextmanager
def _program(source: str, address: str) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """A program with its stdout and stdin, which is killed in the end, or if it hangs."""
    program = subprocess.Popen(
        [sys.executable, "-c", source, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_ENVIRONMENT,
    )
    watchdog = threading.Timer(PATIENCE_S, program.kill)
    watchdog.start()
    try:
        assert program.stdout is not None
        assert program.stdin is not None
        yield program, program.stdout, program.stdin
    finally:
        watchdog.cancel()
        program.kill()
        program.communicate()


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
        _run(_FORK, address)


def test_threads_that_fork_and_step_hang_and_lose_nothing(folder: Path) -> None:
    with ServeProcess(folder) as service:
        service.start()
        _run(_FORKS_OF_THREADS, service.address)


def test_a_signal_handler_uses_the_client_within_a_fork(folder: Path) -> None:
    with ServeProcess(folder) as service:
        service.start()
        with _program(_CALL_WITHIN_A_FORK, service.address) as (_, said, say):
            assert said.readline() == "connected\n"
            service.send(signal.SIGSTOP)
            try:
                say.write("\n")
                say.flush()
                assert said.readline() == "forked\n"
            finally:
                service.send(signal.SIGCONT)


def test_a_forked_child_opens_its_sessions_itself(folder: Path) -> None:
    """It does not inherit its parent's background thread."""
    with (
        ServeProcess(folder) as service,
        _program(_FORK_BEFORE_THE_SERVICE, service.address) as (program, said, _),
    ):
        assert said.readline() == "forked\n"
        service.start()
        assert program.wait(PATIENCE_S) == 0
