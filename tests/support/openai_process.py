"""``suffixsvc openai`` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
from support.serving import PATIENCE_S, eventually


@contextmanager
def process_of(model: Path, folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that answers, and its address. What it logs is in ``folder/log``."""
    ready, log = folder / "ready.json", folder / "log"
    command = [sys.executable, "-m", "suffixsvc_cli", "openai", str(model), "--listen", "127.0.0.1:0"]
    command += ["--threads", "1", "--ready-file", str(ready), *options]
    with log.open("ab") as stderr:
        process = subprocess.Popen(command, stderr=stderr)
    try:
        eventually(lambda: ready.exists() or process.poll() is not None, "the server is ready")
        assert process.poll() is None, log.read_text()
        [address] = json.loads(ready.read_text())["addresses"]
        yield process, address
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def client_at(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{address}/v1", api_key="x", max_retries=0, timeout=PATIENCE_S)
