"""`suffixsvc top` against a real service: once as JSON, and live in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from suffixsvc_cli.server.top_report import Report, read, report_of
from suffixsvc_cli.server.top_view import view
from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.serving import PATIENCE_S, ServeProcess, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
TEXT = list(range(100, 160))
#: what a terminal does not show
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>])")


@pytest.fixture
def serve() -> Iterator[ServeProcess]:
    with socket_dir() as folder, ServeProcess(folder).start() as serve:
        yield serve


def traffic(client: SuffixClient, path: str, steps: int) -> None:
    namespace = client.namespace(path)
    namespace.add_output(TEXT)
    session = namespace.open_session(TEXT[:8])
    for token in TEXT[8 : 8 + steps]:
        session.step([token])


def test_rates_are_those_between_two_readings(serve: ServeProcess) -> None:
    with SuffixClient(serve.address, PATIENT) as client:
        traffic(client, "acme/old", 9)
        first = read(client)
        assert report_of(first, None).activity.steps_per_second is None
        traffic(client, "acme/new", 6)
        second = read(client)
    report = report_of(second, first)
    assert report.seconds == second.at - first.at
    steps = {each.path: each.activity.steps_per_second for each in report.namespaces}
    assert steps == {"acme/new": 6 / report.seconds, "acme/old": 0}
    assert [each.path for each in report.namespaces] == ["acme/new", "acme/old"], "the busiest first"
    assert report.activity.steps_per_second == 6 / report.seconds
    assert report.activity.draft_hit_rate == report.namespaces[0].activity.draft_hit_rate == 1
    assert report.namespaces[1].activity.draft_hit_rate is None, "no step tells"
    assert (report.sessions, report.outputs, report.tokens) == (2, 2, 2 * len(TEXT))
    assert {task.name for task in report.background_tasks} >= {"evict", "maintenance"}


def test_a_restart_begins_the_rates_again(serve: ServeProcess) -> None:
    with SuffixClient(serve.address, PATIENT) as client:
        traffic(client, "a", 3)
        first = read(client)
    serve.terminate()
    with serve.start(), SuffixClient(serve.address, PATIENT) as client:
        report = report_of(read(client), first)
    assert report.seconds is None
    assert report.activity.steps_per_second is None


def test_once_as_json(serve: ServeProcess) -> None:
    with SuffixClient(serve.address, PATIENT) as client:
        traffic(client, "acme/sql", 5)
    done = run_verb("top", "--server", serve.address, "--once", "--json", "--interval", "0.1")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["seconds"] >= 0.1
    assert report["namespaces"][0]["path"] == "acme/sql"
    assert report["activity"]["steps_per_second"] == 0
    assert report["store"]["failing"] is False
    assert report["store"]["last_lsn"] > 10**15
    assert report.keys() == set(Report.__dataclass_fields__)
    shown = run_verb("top", "--server", serve.address, "--once", "--interval", "0.1")
    assert "acme/sql" in shown.stdout
    assert "store ok" in shown.stdout


def test_errors_are_one_line(serve: ServeProcess, tmp_path: Path) -> None:
    for arguments, why in (
        (["--server", serve.address], "standard output must be a terminal"),
        (["--server", serve.address, "--json"], "--json must be given with --once"),
        (["--server", f"unix:{tmp_path}/none", "--once"], "none"),
    ):
        done = run_verb("top", *arguments)
        assert done.returncode == 2
        assert why in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def long_report() -> Report:
    """Of a service of many namespaces with long paths."""
    with (
        socket_dir() as folder,
        ServeProcess(folder).start() as serve,
        SuffixClient(serve.address, PATIENT) as client,
    ):
        for number in range(12):
            client.namespace(f"a/very/long/path/of/a/namespace/{number:03}").add_output([1, 2, 3])
        return report_of(read(client), None)


@pytest.mark.parametrize("width", [20, 39, 60, 100, 200])
@pytest.mark.parametrize("height", [8, 24, 60])
def test_the_view_fits_the_terminal(long_report: Report, width: int, height: int) -> None:
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(view(long_report, "unix:/run/s.sock", width, height, "it does not answer"))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 16)
    assert any(line.startswith("namespaces (12)"[:width]) for line in lines) or width < 40
    assert any(line.startswith("no answer") for line in lines)


def test_no_line_is_empty_while_there_are_rows(long_report: Report) -> None:
    wanted = len(long_report.namespaces) + len(long_report.background_tasks)
    for height in range(12, wanted + 12):
        console = Console(width=100, height=height, force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(view(long_report, "unix:/run/s.sock", 100, height))
        assert len(captured.get().splitlines()) == min(height, wanted + 8)


class Terminal:
    """`suffixsvc top` on a terminal of its own."""

    def __init__(self, address: str, columns: int = 100, rows: int = 30) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.slave = slave
        self.before = termios.tcgetattr(slave)
        command = [sys.executable, "-m", "suffixsvc_cli", "top", "--server", address, "--interval", "0.1"]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.screen = ""

    def wait_for(self, text: str) -> None:
        """Read until the screen shows a text, from now on."""
        self.screen = ""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.screen:
            assert time.monotonic() < deadline, self.screen[-2000:]
            assert self.process.poll() is None, self.screen
            if select.select([self._master], [], [], 1.0)[0]:
                self.screen += ESCAPES.sub("", os.read(self._master, 1 << 16).decode(errors="replace"))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ends(self) -> int:
        """The exit code; the output is read so that the process can write the rest of it."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self._master], [], [], 0.05)[0]:
                self.screen += os.read(self._master, 1 << 16).decode(errors="replace")
        return self.process.returncode

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        with contextlib.suppress(OSError):
            os.close(self._master)
        os.close(self.slave)


def test_a_live_view(serve: ServeProcess) -> None:
    with SuffixClient(serve.address, PATIENT) as client, Terminal(serve.address) as top:
        top.wait_for("0 sessions")
        traffic(client, "acme/sql", 5)
        top.wait_for("acme/sql")
        top.wait_for("1 sessions")
        serve.terminate()
        top.wait_for("no answer")
        serve.start()
        top.wait_for("1 outputs")
        top.press(b"xyq")
        assert top.ends() == 0
        assert termios.tcgetattr(top.slave) == top.before, "the terminal is as it was"


@pytest.mark.parametrize("keys", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_keys_end_a_narrow_view(serve: ServeProcess, keys: bytes) -> None:
    with Terminal(serve.address, columns=32, rows=10) as top:
        top.wait_for("store ok")
        top.press(keys)
        assert top.ends() == 0
        assert "Traceback" not in top.screen
        assert termios.tcgetattr(top.slave) == top.before
