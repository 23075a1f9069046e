"""Runners of llama.cpp's programs, for ``make interop``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE_S = 120.0
ROOT = Path(__file__).resolve().parents[2]

#: receives (program, what was compared, outcome)
Note = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Tools:
    """Folder of llama.cpp's programs, and the model that they load."""

    folder: Path
    model: Path

    def run(self, program: str, *args: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / program), *map(str, args)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # no debugger on abort
            **options,
        )


@dataclass(frozen=True)
class RunningServer:
    """A llama-server; ``address`` is HOST:PORT."""

    address: str
    pid: int

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}{path}", data)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
            return str(reply.read().decode())

    def is_ready(self) -> bool:
        try:
            return "ok" in self.ask("/health")
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def serving(tools: Tools, log: Path, *args: str | Path, port: str = "") -> Iterator[RunningServer]:
    """A llama-server with the tools' model on one thread, ready; on a free port unless one is given."""
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
    command = [tools.folder / "llama-server", "-m", tools.model, "--port", port, "-t", "1", *args]
    with log.open("w") as out, subprocess.Popen(list(map(str, command)), stdout=out, stderr=out) as process:
        server = RunningServer(f"127.0.0.1:{port}", process.pid)
        try:
            until = time.monotonic() + _PATIENCE_S
            while not server.is_ready():
                assert process.poll() is None, log.read_text(errors="replace")[-2000:]
                assert time.monotonic() < until, "the server did not start"
                time.sleep(0.2)
            yield server
        finally:
            process.terminate()
