"""Server processes whose memory, descriptors, threads and health are watched from outside."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc.runtime.child_process import ChildProcess, ChildProcesses
from suffixsvc.v1 import draft_worker_pb2, draft_worker_pb2_grpc
from support.idle_calls import connection
from support.process_usage import Usage, usage_of

__all__ = ["MeasuredServer", "Prober", "measured_server", "probe_of"]

#: a probe that takes longer has no answer
PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class MeasuredServer:
    """A running server.

    Attributes:
        kind: serve, openai or draft-worker.
        address: HOST:PORT.
    """

    kind: str
    address: str
    pid: int
    child: ChildProcess

    @property
    def usage(self) -> Usage:
        return usage_of(self.pid)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def defects(self) -> list[str]:
        """Lines of its log about exceptions that no handler expected."""
        marks = ("Traceback (most recent call last)", "defect", "Fatal Python error", "terminate called")
        lines = self.child.log.read_text(errors="replace").splitlines()
        return [line[:300] for line in lines if any(mark in line for mark in marks)]


@contextlib.contextmanager
def measured_server(folder: Path, kind: str, *options: str) -> Iterator[MeasuredServer]:
    """Run ``suffixsvc KIND OPTIONS`` on a free loopback port; its log is in ``folder``."""
    ready = folder / f"{kind}.ready"
    line = [kind, *options, "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with ChildProcesses(folder) as children:
        child = children.start(kind, line, ready.exists)
        announced = json.loads(ready.read_text())
        yield MeasuredServer(kind, announced["addresses"][-1], announced["pid"], child)


@contextlib.contextmanager
def probe_of(server: MeasuredServer) -> Iterator[Callable[[], object]]:
    """A function that asks for a server's health, on a connection of its own; it raises without an answer."""
    if server.kind == "openai":
        with httpx.Client(base_url=f"http://{server.address}", timeout=PROBE_SECONDS) as http:
            yield lambda: http.get("/health").raise_for_status()
        return
    with connection(server.address) as channel:
        if server.kind == "serve":
            health = health_pb2_grpc.HealthStub(channel)
            yield lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_SECONDS)
        else:  # a draft worker has no health service
            worker = draft_worker_pb2_grpc.DraftWorkerStub(channel)
            yield lambda: worker.Describe(draft_worker_pb2.DescribeRequest(), timeout=PROBE_SECONDS)


class Prober:
    """Asks for the health of a server every 100 ms for the block.

    Attributes:
        seconds: of each answer.
        failures: of probes without an answer.
    """

    def __init__(self, server: MeasuredServer, period_seconds: float = 0.1) -> None:
        self._server = server
        self._period = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def _run(self) -> None:
        with probe_of(self._server) as probe:
            while not self._stop.wait(self._period):
                began = time.perf_counter()
                try:
                    probe()
                except (grpc.RpcError, httpx.HTTPError) as error:
                    self.failures.append(repr(error)[:300])
                else:
                    self.seconds.append(time.perf_counter() - began)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
