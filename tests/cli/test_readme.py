"""The README's code runs as it stands there, and what it points at exists."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serving import eventually
from support.tiny_agent import Line, write_tiny_agent
from support.tiny_gguf import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: the README's socket lies in it, and socket paths end at 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="readme-") as name:
        yield Path(name)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SUFFIXSVC_HOME": str(folder / "home")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def verb(line: str) -> list[str]:
    program, *rest = shlex.split(line)
    assert program == "suffixsvc"
    return [sys.executable, "-m", "suffixsvc_cli", *rest]


def test_the_embedded_example_runs(folder: Path) -> None:
    result = run([sys.executable, "-c", PYTHON[0]], folder)
    assert result.stderr == ""
    drafted, outputs = result.stdout.splitlines()
    assert drafted.startswith("[13, 14")
    assert "'NAMESPACE'" in drafted
    assert outputs == "2 outputs"


def test_the_endpoint_example_runs_against_the_server_as_started_there(folder: Path) -> None:
    download, start = SHELL[0].splitlines()
    [_, _, model, *options] = shlex.split(start)
    assert download == f"suffixsvc models get {model}"
    query = "SELECT name FROM customers WHERE city = 'Lisbon';"
    write_tiny_agent(folder / f"{model}.gguf", [Line("true", query)])
    ready = folder / "ready.json"
    command = verb(shlex.join(["suffixsvc", "openai", f"./{model}.gguf", *options]))
    command += ["--threads", "1", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE)
    try:
        eventually(lambda: ready.exists() or server.poll() is not None, "the server answers")
        assert server.poll() is None
        [address] = json.loads(ready.read_text())["addresses"]
        result = run([sys.executable, "-c", PYTHON[1].replace("127.0.0.1:8000", address)], folder)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=300)
    assert result.stderr == ""
    said = result.stdout.splitlines()
    assert said[::2] == [query, query]
    first, second = (ast.literal_eval(line) for line in said[1::2])
    # whether a model this small is worth drafting for depends on the time of its steps
    assert first["suffix"] == 0
    assert sum(first.values()) == sum(second.values()) > 0
    assert (folder / "memory").is_dir()


def test_the_client_example_runs_against_the_service_as_started_there(folder: Path) -> None:
    server = subprocess.Popen(verb(SHELL[1]), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 300
        while not (folder / "suffixsvc.sock").exists():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        result = run([sys.executable, "-c", PYTHON[2]], folder)
        write_tiny_llama(folder / "model.gguf", seed=5)
        driven = run([sys.executable, "-c", PYTHON[3]], folder)
    finally:
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=300)
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) == 12
    # the second answer begins as the first did, so the service drafts how that one went on
    assert any(line.startswith(("11 -> [12", "12 -> [13")) for line in lines[6:]), said
    # how busy the machine is may be told, and nothing else
    assert [line for line in driven.stderr.splitlines() if "measured on a busy machine" not in line] == []
    assert driven.stdout.rstrip().endswith("tokens were drafted")
    assert "measuring the cost of the model's steps" in driven.stdout, "structlog's default is stdout"
    assert (folder / "home" / "cost").is_dir()


def test_the_replay_example_runs() -> None:
    result = run(verb(SHELL[2]), ROOT)
    assert result.returncode == 0, result.stderr
    assert "priced speedup" in result.stdout


def test_the_examples_are_short() -> None:
    assert len(PYTHON) == 4
    for example in PYTHON:
        assert len(example.splitlines()) <= 20


def test_every_file_named_to_start_reading_exists() -> None:
    start = README.split("## Where to start reading")[1]
    for name in re.findall(r"`([\w/.]+(?:\.py|\.h|/))`", start):
        assert (ROOT / name).exists(), name


def test_the_readme_says_how_the_package_gets_installed() -> None:
    """The README said that `make` puts the package into .venv; `make` alone prints the help."""
    use = README.split("## Use it")[1].split("```")[0]
    assert "`make setup` puts the package into `.venv`" in use
    assert "`make` puts" not in README
    assert ".venv/bin/suffixsvc" in use
    assert "source .venv/bin/activate" in use


def test_every_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z]+)\b", README):
        if target in {"alone"}:
            continue
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
