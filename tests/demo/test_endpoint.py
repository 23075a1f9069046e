"""The lines that the demo prints at its end: the first one starts a server, the second one is answered."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from suffixsvc_bench.demo.endpoint import request_line, server_line
from support.openai_process import client_at
from support.serving import PATIENCE_S, eventually
from support.tiny_agent import Line, write_tiny_agent


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_printed_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = write_tiny_agent(tmp_path / "it's tiny.gguf", [Line("true", "SELECT name FROM customers")])
    address = free_address()
    log = tmp_path / "log"
    line = server_line(model, address)
    with log.open("wb") as stderr:
        server = subprocess.Popen(f"exec {line}", shell=True, stderr=stderr)
    try:

        def ready() -> bool:
            assert server.poll() is None, log.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0

        eventually(ready, "the server answers")
        ran = subprocess.run(
            request_line(model, address), shell=True, capture_output=True, text=True, check=True
        )
        answer = json.loads(ran.stdout)
        assert answer["choices"][0]["message"]["content"] == "SELECT name FROM customers"
        with client_at(address) as client:
            assert client.models.list().data[0].id == model.stem
    finally:
        server.kill()
        server.wait(PATIENCE_S)
    assert (tmp_path / "memory").is_dir()


def test_without_an_address_the_lines_are_short() -> None:
    line = server_line(Path("/models/m.gguf"))
    assert line.endswith("suffixsvc openai /models/m.gguf --data memory")
    assert " http://127.0.0.1:8000/v1/chat/completions " in request_line(Path("/models/m.gguf"))
