"""Server processes of the benchmark of the wire."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suffixsvc.runtime.child_process import ChildProcesses

__all__ = ["Addresses", "echo_process", "service_process", "worker_process"]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of one server."""

    unix: str
    tcp: str


@contextlib.contextmanager
def service_process(folder: Path) -> Iterator[Addresses]:
    """`suffixsvc serve` with its defaults on an empty data folder."""
    with ChildProcesses(folder) as children:
        children.start_service(folder / "data", f"unix:{folder}/service.sock", "127.0.0.1:0")
        yield Addresses(*_addresses(children.ready_file("service")))


@contextlib.contextmanager
def worker_process(folder: Path, model: Path, threads: int) -> Iterator[str]:
    """`suffixsvc draft-worker` with a model; yields its address."""
    with ChildProcesses(folder) as children:
        children.start_draft_worker(model, f"unix:{folder}/worker.sock", threads=threads)
        [address] = _addresses(children.ready_file("draft worker"))
        yield address


@contextlib.contextmanager
def echo_process(folder: Path) -> Iterator[Addresses]:
    """The echo server of :mod:`suffixsvc_bench.rpc.echo`."""
    ready, socket = folder / "echo.ready", f"unix:{folder}/echo.sock"
    line = [sys.executable, "-m", "suffixsvc_bench.rpc.echo", str(ready), socket, "127.0.0.1:0"]
    with ChildProcesses(folder) as children:
        children.start_program("echo", line, ready.exists)
        yield Addresses(*_addresses(ready))


def _addresses(ready: Path) -> list[str]:
    found: list[str] = json.loads(ready.read_text(encoding="utf-8"))["addresses"]
    return found
