"""`suffixsvc serve` as a process: refusals, start, shutdown, and the state afterwards."""

from __future__ import annotations

import json
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.clock import SystemTime
from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord, NewOutput
from suffixsvc_client import ClientConfig, SuffixClient
from support.engine_parts import parts_of
from support.serving import PATIENCE_S, ServeProcess, eventually, socket_dir, spawn

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def refused(serve: ServeProcess) -> str:
    """The error of a service that must not start: one line, exit code 2."""
    process = serve.launch()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    [line] = [line for line in said.splitlines() if line.startswith("suffixsvc serve:")]
    return line


def test_both_kinds_of_address_at_once(folder: Path) -> None:
    listen = (f"unix:{folder}/s.sock", "127.0.0.1:0")
    with ServeProcess(folder, listen=listen, from_shell=True) as serve:
        unix, tcp = serve.start().ready["addresses"]
        assert unix == listen[0]
        assert stat.S_IMODE(serve.socket.stat().st_mode) == 0o600
        with SuffixClient(unix, PATIENT) as one, SuffixClient(tcp, PATIENT) as other:
            assert one.server_info() == other.server_info()
            assert one.server_info().durable
            assert one.server_info().instance_id == serve.ready["instance_id"]
        assert serve.terminate() == 0
        events = [json.loads(line) for line in serve.output().splitlines()]
        assert [event["event"] for event in events] == ["ready", "draining", "drained", "stopped"]
        assert events[0]["addresses"] == [unix, tcp]
        assert not serve.ready_file.exists()
        assert not serve.socket.exists()


def test_sigterm_commits_live_sessions(folder: Path) -> None:
    words = [11, 12, 13, 14, 15, 16, 17, 18]
    with ServeProcess(folder, from_shell=True) as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            session = client.namespace("a/b").open_session([1, 2, 3], labels={"agent": "writer"})
            session.step(words)
            assert serve.terminate() == 0
    with SuffixCache(folder / "data") as cache:
        [stored] = parts_of(cache).store.scan()
        assert stored.output.incomplete
        assert stored.output.token_ids.tolist() == words
        assert stored.output.labels == {"agent": "writer"}
    with ServeProcess(folder) as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            draft = client.namespace("a/b").open_session([1, 2, 3]).step(words[:3])
            assert draft.token_ids.tolist()[:3] == words[3:6]


@pytest.mark.crash
def test_an_acknowledged_close_survives_kill(folder: Path) -> None:
    with ServeProcess(folder) as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            session = client.namespace("a").open_session([1])
            session.step([5, 6, 7])
            output_id = session.close()
            serve.kill()
        assert serve.socket.exists(), "kill -9 leaves the socket file; the next start must cope"
    with ServeProcess(folder) as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            assert client.stats().outputs == 1
            assert output_id is not None
            client.namespace("a").delete(output_ids=[output_id])


def test_a_second_server_on_the_data_folder(folder: Path) -> None:
    with ServeProcess(folder) as serve:
        serve.start()
        said = refused(ServeProcess(folder, listen=("127.0.0.1:0",)))
        assert str(folder / "data") in said
        with SuffixClient(serve.address) as client:
            assert client.server_info().durable


def test_a_busy_port(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = refused(ServeProcess(folder, listen=(address,), from_shell=True))
    assert address in said
    assert "another port" in said


def test_a_network_address_needs_saying_so(folder: Path) -> None:
    assert "--insecure-network" in refused(ServeProcess(folder, listen=("0.0.0.0:0",)))
    with ServeProcess(folder, "--insecure-network", listen=("0.0.0.0:0",)) as serve:
        [address] = serve.start().ready["addresses"]
        with SuffixClient(address.replace("0.0.0.0", "127.0.0.1"), PATIENT) as client:
            assert client.server_info().durable


def test_idle_sessions_expire(folder: Path) -> None:
    with ServeProcess(folder, "--session-idle-seconds", "0.4") as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            session = client.namespace("a").open_session([1])
            session.step([5, 6])
            eventually(lambda: client.stats().sessions == 0, "the session expired")
            assert client.stats().outputs == 1


class MonthAgo(SystemTime):
    """The clocks of a machine on which it is a month earlier."""

    def wall(self) -> float:
        return super().wall() - 30 * 86_400


def test_the_grace_period_after_time_without_a_service_is_reported(folder: Path) -> None:
    """What happened: a service on a machine that booted with a wrong clock deleted all outputs with a TTL
    half a minute later. Now log and statistics report that outputs stay, and for how long."""
    store = LmdbStore(folder / "data", clock=MonthAgo())
    store.add_namespace(NamespaceRecord("a"))
    ids = np.array([1, 2, 3], np.int32)
    store.append([NewOutput("a", ids, (3,), np.array([], np.int32), ttl_seconds=60)]).result()
    store.close()
    with ServeProcess(folder, "--session-idle-seconds", "0.4", "--expiry-grace-seconds", "1000") as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            session = client.namespace("b").open_session([1])
            session.step([5, 6])
            # the thread that expires sessions expires outputs, too
            eventually(lambda: client.stats().sessions == 0, "the session expired")
            assert 900 < client.stats().expiry_grace_seconds <= 1000
            assert client.namespace("a").stats().outputs == 1
        assert serve.terminate() == 0
        [warning] = [line for line in serve.output().splitlines() if "grace period" in line]
        assert json.loads(warning)["level"] == "warning"
        assert json.loads(warning)["closed_seconds"] == pytest.approx(30 * 86_400, rel=1e-3)
    with ServeProcess(folder, "--session-idle-seconds", "0.4", "--expiry-grace-seconds", "0.01") as serve:
        serve.start()
        with SuffixClient(serve.address, PATIENT) as client:
            eventually(lambda: client.namespace("a").stats().outputs == 0, "the output expired")


def test_a_signal_that_reaches_another_thread_is_not_lost() -> None:
    """What happened: a service slept through a SIGTERM that came between the main thread's last check and its
    sleep, as if another thread had received it; an Event does not wake up then."""
    code = """
import signal, threading, time
from suffixsvc.runtime.server_lifecycle import stop_signal

def send():
    time.sleep(0.5)  # until the main thread sleeps
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(3600)

with stop_signal() as wait_for_stop:
    threading.Thread(target=send, daemon=True).start()
    wait_for_stop()
"""
    process = spawn([sys.executable, "-c", code])
    try:
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_signal_is_received_through_a_descriptor_of_any_number() -> None:
    """What happened: a server that was started with more than 1,000 open files ended with ValueError, since
    select() refuses such descriptors."""
    code = """
import os, resource, signal
from suffixsvc.runtime.server_lifecycle import stop_signal

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, most), most))
while os.open(os.devnull, os.O_RDONLY) < 1100:
    pass
with stop_signal() as wait_for_stop:
    assert not wait_for_stop(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    assert wait_for_stop()
"""
    process = spawn([sys.executable, "-c", code])
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-cache-gib", "0"),
        ("--max-sessions", "-1"),
        ("--max-sessions", "0"),
        ("--session-idle-seconds", "nan"),
    ],
)
def test_a_limit_that_is_not_positive_is_refused_by_its_option(folder: Path, option: str, value: str) -> None:
    """What happened: the error named a field of the engine instead of the option."""
    line = refused(ServeProcess(folder, option, value))
    assert line == f"suffixsvc serve: {option} must be a positive number; got {value}"
