"""The servers, each a process of its own, started and stopped alike."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suffixsvc.children import Children

__all__ = ["Addresses", "echo_process", "service_process", "worker_process"]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where one server listens."""

    unix: str
    tcp: str


@contextlib.contextmanager
def service_process(folder: Path) -> Iterator[Addresses]:
    """`suffixsvc serve` with its defaults, on a fresh data folder."""
    with Children(folder) as children:
        children.start_service(folder / "data", f"unix:{folder}/service.sock", "127.0.0.1:0")
        yield Addresses(*_addresses(children.told("service")))


@contextlib.contextmanager
def worker_process(folder: Path, model: Path, threads: int) -> Iterator[str]:
    """`suffixsvc draft-worker` with a model; its address."""
    with Children(folder) as children:
        children.start_draft_worker(model, f"unix:{folder}/worker.sock", threads=threads)
        [address] = _addresses(children.told("draft worker"))
        yield address


@contextlib.contextmanager
def echo_process(folder: Path) -> Iterator[Addresses]:
    """A bare gRPC server that answers with as many bytes as it is told."""
    ready, socket = folder / "echo.ready", f"unix:{folder}/echo.sock"
    line = [sys.executable, "-m", "suffixsvc_bench.rpc_bench.echo", str(ready), socket, "127.0.0.1:0"]
    with Children(folder) as children:
        children.start_program("echo", line, ready.exists)
        yield Addresses(*_addresses(ready))


def _addresses(ready: Path) -> list[str]:
    found: list[str] = json.loads(ready.read_text(encoding="utf-8"))["addresses"]
    return found
