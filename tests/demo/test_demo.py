"""The whole demo as a process, on a tiny random model: every stage, and what is left when it is stopped."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from suffixsvc_bench.demo.report import token_texts
from support.serving import PATIENCE_S, eventually, socket_dir
from support.tiny_gguf import write_tiny_llama

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=8192)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo's sockets go; the paths of pytest's own folders are too long for them."""
    with socket_dir() as folder:
        yield folder


def command(model: Path, *more: str) -> list[str]:
    pair = ["--target", str(model), "--draft", str(model), "--threads", "1", "--questions", "1"]
    pair += ["--context", "8192"]  # its tokens are bytes
    return [sys.executable, "-m", "suffixsvc_cli", "demo", *pair, *more]


class Balanced(HTMLParser):
    """Fails on a tag that is closed but not open, and knows what is still open."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.classes += [value for name, value in attrs if name == "class" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_stage_runs_and_leaves_its_results(model: Path, folder: Path, tmp_path: Path) -> None:
    page, log = tmp_path / "page.html", tmp_path / "log.jsonl.gz"
    result = subprocess.run(
        command(model, "--report", str(page), "--record", str(log)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SUFFIXSVC_HOME": str(tmp_path), "TMPDIR": str(folder)},
    )
    said = result.stdout
    # "Setting up" measured for minutes without output if stderr was not a terminal
    first, *others = result.stderr.splitlines()
    assert "measuring the cost of the model's steps" in first
    assert "seconds_at_most=" in first
    # only lines that depend on the machine's load may follow
    by_load = (
        "measured on a busy machine",
        "no drafts from the service until it answers: the service did not answer in time",
    )
    unexpected = [line for line in others if not any(known in line for known in by_load)]
    assert not unexpected, "\n".join(unexpected)
    for stage in (
        "First pass",
        "Second pass",
        "Per agent",
        "A crash",
        "All three layers",
        "Exactness",
        "Two processes",
        "Done in",
        "Serve this model",
    ):
        assert stage in said
    # checks that depend on speed can fail here, on a model of noise; the others must not
    failed = re.findall(r"Failed on this machine: (.*)", said)
    assert all(
        check.startswith(
            (
                "the second pass is faster",
                "the second pass drafts more",
                "first-match accepts",
                # what a model of noise writes for two questions has nothing in common
                "each of two processes drafts",
            )
        )
        for check in failed
    )
    assert result.returncode == (1 if failed else 0)

    before, after = re.findall(r"outputs before (\d+), after (\d+)", said)[0]
    assert before == after
    assert int(before) == 10
    drafted, whole = re.findall(r"the service drafts (\d+)\s+of its (\d+) tokens", said)[0]
    assert 0 < int(drafted) <= int(whole)
    assert re.search(r"\(a\) same batches: (\d+) of \1 tokens", said)

    with gzip.open(log, "rt") as stream:
        records = [json.loads(line) for line in stream]
    assert [r["meta"]["pass"] for r in records] == [1] * 5 + [2] * 5 + [3] * 5
    for record in records:
        assert record["dataset"] == "suffixsvc-demo"
        assert record["prompt_token_ids"]
        assert record["response_token_ids"]
        assert record["tokenizer"].startswith("xxh3:")
    assert [r["turn"] for r in records[:5]] == [0, 1, 2, 3, 4]

    text = page.read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert {"prompt", "suffix", "model", "target"} <= set(parser.classes)
    assert "@BODY@" not in text
    assert "http" not in text  # nothing to load from anywhere
    assert not list(folder.glob("suffixsvc-demo-*"))


def family(pid: int) -> set[int]:
    """Processes below ``pid``."""
    found, new = set(), {pid}
    while new:
        children = set()
        for parent in new:
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                children |= {int(child) for child in task.read_text().split()}
        found |= children
        new = children
    return found


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def accept_signals() -> None:
    """Default handlers, as in a terminal: background jobs ignore SIGINT, nohup ignores SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first demo that is stopped stores the costs of the model's steps for the others."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def running(
    model: Path, home: Path, folder: Path, tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """A demo in its own session whose service and draft worker are up, and their process ids."""
    process = subprocess.Popen(
        command(model, "--report", str(tmp_path / "page.html")),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=accept_signals,
        env={**os.environ, "SUFFIXSVC_HOME": str(home), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("First pass"):
                break
        children = family(process.pid)
        assert len(children) == 2, lines
        yield process, children
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def assert_gone(children: set[int]) -> None:
    eventually(lambda: not any(alive(pid) for pid in children), f"processes {children} are gone")


@linux_only
@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_demo_leaves_no_process_and_no_folder(
    running: tuple[subprocess.Popen[str], set[int]], number: signal.Signals, folder: Path
) -> None:
    process, children = running
    # to the whole group, as a terminal does
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert_gone(children)
    assert not list(folder.glob("suffixsvc-demo-*"))


@linux_only
@pytest.mark.crash
def test_even_a_killed_demo_leaves_no_process(running: tuple[subprocess.Popen[str], set[int]]) -> None:
    process, children = running
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert_gone(children)


def test_a_character_of_several_tokens_belongs_to_its_last() -> None:
    pieces = [b"a", "\u20ac".encode()[:1], "\u20ac".encode()[1:], b"\xff", b"b"]
    assert token_texts(range(5), lambda token: pieces[token]) == ["a", "", "\u20ac", "\ufffd", "b"]
    assert token_texts(range(2), lambda token: pieces[token]) == ["a", "\ufffd"]
    assert token_texts([], lambda token: b"") == []
