"""The servers, each a process of its own, started and stopped alike."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suffixsvc.errors import ServiceUnavailableError

__all__ = ["Addresses", "echo_process", "service_process", "worker_process"]

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where one server listens."""

    unix: str
    tcp: str


@contextlib.contextmanager
def service_process(folder: Path) -> Iterator[Addresses]:
    """`suffixsvc serve` with its defaults, on a fresh data folder."""
    ready, socket = folder / "service.ready", f"unix:{folder}/service.sock"
    command = ["-m", "suffixsvc.cli", "serve", "--data", str(folder / "data"), "--ready-file", str(ready)]
    with _process([*command, "--listen", socket, "--listen", "127.0.0.1:0"], ready, folder) as (unix, tcp):
        yield Addresses(unix, tcp)


@contextlib.contextmanager
def worker_process(folder: Path, model: Path, threads: int) -> Iterator[str]:
    """`suffixsvc draft-worker` with a model; its address."""
    ready, socket = folder / "worker.ready", f"unix:{folder}/worker.sock"
    command = ["-m", "suffixsvc.cli", "draft-worker", "--model", str(model), "--threads", str(threads)]
    command += ["--ready-file", str(ready), "--listen", socket]
    with _process(command, ready, folder) as [address]:
        yield address


@contextlib.contextmanager
def echo_process(folder: Path) -> Iterator[Addresses]:
    ready, socket = folder / "echo.ready", f"unix:{folder}/echo.sock"
    command = ["-m", "suffixsvc_bench.rpc_bench.echo", str(ready), socket, "127.0.0.1:0"]
    with _process(command, ready, folder) as (unix, tcp):
        yield Addresses(unix, tcp)


@contextlib.contextmanager
def _process(arguments: list[str], ready: Path, folder: Path) -> Iterator[list[str]]:
    log = folder / f"{ready.stem}.log"
    with log.open("wb") as output:
        # a group of its own: a Ctrl-C reaches the benchmark alone, which then ends what it started
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=output, stderr=output, start_new_session=True
        )
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text(encoding="utf-8", errors="replace")[-500:]
                    raise ServiceUnavailableError(
                        "a server that was to be measured did not start",
                        expected="ready within a minute",
                        got=said,
                    )
                time.sleep(0.01)
            addresses: list[str] = json.loads(ready.read_text(encoding="utf-8"))["addresses"]
            yield addresses
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
