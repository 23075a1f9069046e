"""Server processes of the benchmark of the wire."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from suffixsvc.runtime.child_process import ChildProcesses

#: addresses of one server: "unix" and "tcp"
Addresses = dict[str, str]


@contextlib.contextmanager
def service_process(folder: Path) -> Iterator[Addresses]:
    """`suffixsvc serve` with its defaults on an empty data folder."""
    with ChildProcesses(folder) as children:
        children.start_service(folder / "data", f"unix:{folder}/service.sock", "127.0.0.1:0")
        yield _addresses(children.ready_file("service"))


@contextlib.contextmanager
def tcp_service_process(folder: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """`suffixsvc serve` with further options in an empty folder; yields its loopback address."""
    folder.mkdir()
    with ChildProcesses(folder) as children:
        children.start_service(folder / "data", "127.0.0.1:0", options=options)
        (address,) = json.loads(children.ready_file("service").read_text(encoding="utf-8"))["addresses"]
        yield address


@contextlib.contextmanager
def worker_process(folder: Path, model: Path, threads: int, options: Sequence[str] = ()) -> Iterator[str]:
    """`suffixsvc draft-worker` with a model and further options; yields its address."""
    with ChildProcesses(folder) as children:
        children.start_draft_worker(model, f"unix:{folder}/worker.sock", threads=threads, options=options)
        yield _addresses(children.ready_file("draft worker"))["unix"]


@contextlib.contextmanager
def echo_process(folder: Path, certificate: Sequence[Path] = ()) -> Iterator[Addresses]:
    """The echo server of :mod:`suffixsvc_bench.rpc.echo`; with TLS if it has a certificate and its key."""
    ready, socket = folder / "echo.ready", f"unix:{folder}/echo.sock"
    line = [sys.executable, "-m", "suffixsvc_bench.rpc.echo", str(ready), f"{socket} 127.0.0.1:0"]
    line += map(str, certificate)
    with ChildProcesses(folder) as children:
        children.start_program("echo", line, ready.exists)
        yield _addresses(ready)


def _addresses(ready: Path) -> Addresses:
    """The addresses in a ready file, in the order of the command line: unix, then tcp if there is one."""
    return dict(
        zip(("unix", "tcp"), json.loads(ready.read_text(encoding="utf-8"))["addresses"], strict=False)
    )
