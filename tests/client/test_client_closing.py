"""Closing a client at any moment: calls end with a typed error, and no resource leaks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import AsyncSuffixClient, ClientConfig
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from support.client_parts import current_channel
from support.serving import PATIENCE_S, ServeProcess, eventually, serving, socket_dir

CONFIG = ClientConfig(step_timeout_s=300, open_timeout_s=300, call_timeout_s=300)


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.fixture
def paused(folder: Path) -> Iterator[ServeProcess]:
    """A service that accepts calls and answers none."""
    with ServeProcess(folder) as serve:
        serve.start()
        serve.send(signal.SIGSTOP)
        yield serve
        serve.send(signal.SIGCONT)


def call(client: AsyncSuffixClient, kind: str) -> Coroutine[Any, Any, object]:
    namespace = client.namespace("a")
    match kind:
        case "unary":
            return client.server_info()
        case "upload":
            return namespace.add_output([1, 2, 3])
        case _:
            return namespace.export_ngrams([RecordFile(2, 4)], [BytesIO()])


async def in_flight(client: AsyncSuffixClient, kind: str) -> asyncio.Task[object]:
    """A call that the service has not answered."""
    task = asyncio.ensure_future(call(client, kind))
    while not (current := current_channel(client.runner.transport)) or not current.active_calls:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    return task


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["unary", "upload", "download"])
def test_closing_the_asyncio_client_fails_its_calls_and_cancels_no_task(
    paused: ServeProcess, kind: str
) -> None:
    """What happened: a call that ran while its client was closed raised CancelledError in a task that was not
    cancelled. Such a task ends without a log line, and a TaskGroup or gather treats it as cancelled."""

    async def run() -> None:
        client = AsyncSuffixClient(paused.address, CONFIG)
        task = await in_flight(client, kind)
        await client.close()
        with pytest.raises(ServiceUnavailableError, match="the client is closed"):
            await task

    asyncio.run(run())


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["unary", "upload", "download"])
def test_a_cancelled_call_of_the_asyncio_client_stays_cancelled(paused: ServeProcess, kind: str) -> None:
    async def run() -> None:
        async with AsyncSuffixClient(paused.address, CONFIG) as client:
            task = await in_flight(client, kind)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await call(client, kind)
            both = await in_flight(client, kind)
            both.cancel()
            await client.close()
            with pytest.raises(asyncio.CancelledError):
                await both

    asyncio.run(run())


#: prints the resources that a transport leaks if a signal handler closes it; ends with "swept"
_SWEEP = """
import os, signal, sys, threading
from pathlib import Path
from suffixsvc.transport import channels
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.transport import grpc_sync
from suffixsvc_client.protocol.effects import Call

FILES = {channels.__file__, grpc_sync.__file__}
target, kind = sys.argv[1:]
folder = target.removeprefix("unix:").rpartition("/")[0]

def held():
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass
    return [link for link in links if link.startswith(folder)]

def ask(transport):
    if kind == "unary":
        transport.call(Call(pb.GetServerInfoRequest(), 300))
    else:
        transport.exchange([pb.StreamRequest(), pb.StreamRequest()], 300)

line = 0
while True:
    transport = grpc_sync.GrpcTransport(target)
    signal.signal(signal.SIGUSR1, lambda *_: transport.close())
    line += 1
    left = line
    def trace(frame, event, _):
        global left
        if frame.f_code.co_filename not in FILES:
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            where[:] = [f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"]
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR1)
        return trace
    where = []
    sys.settrace(trace)
    try:
        ask(transport)
    except ServiceUnavailableError:
        pass
    finally:
        sys.settrace(None)
    if not where:
        break
    try:
        ask(transport)
    except ServiceUnavailableError as error:
        assert "the client is closed" in str(error), (where, error)
    else:
        raise AssertionError(f"a closed transport answers: {where}")
    for thread in threading.enumerate():
        if thread.name == "suffixsvc-stream":
            thread.join()
    assert not transport._channels._open and not held(), (where, transport._channels._open, held())
transport.close()
print("swept", line - 1)
"""


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_a_signal_handler_may_close_the_client_at_any_line(folder: Path, kind: str) -> None:
    """What happened: if a handler closed the client while its thread created a channel, the thread used a
    channel that was never closed; if the thread was sending on the stream, the handler waited for its own
    thread's lock without end.

    Runs in a separate process, which can be killed if it hangs; a new transport for each line.
    """
    with SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        ran = subprocess.run(
            [sys.executable, "-c", _SWEEP, address, kind],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    said, lines = ran.stdout.split()
    assert said == "swept"
    assert int(lines) > 20


@pytest.mark.crash
def test_a_stream_whose_thread_cannot_be_started_leaks_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: at a process's limit of threads the stream's call stayed open on the service, gRPC's
    sender thread waited for its outbox without end, and the caller got a RuntimeError."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "suffixsvc-stream":
            raise RuntimeError("can't start new thread")
        start(thread)

    with ServeProcess(folder) as serve:  # not in this process: its threads are counted
        transport = GrpcTransport(serve.start().address)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            before = set(threading.enumerate())
            with pytest.raises(ServiceUnavailableError, match="no stream to the service can be opened"):
                transport.exchange([pb.StreamRequest()], PATIENCE_S)
            eventually(
                lambda: set(threading.enumerate()) <= before,
                "gRPC's sender thread has ended",
            )
            current = current_channel(transport)
            assert current is not None
            assert current.active_calls == 0
        assert len(transport.exchange([pb.StreamRequest()], PATIENCE_S)) == 1
        transport.close()
