"""`suffixsvc generate` in tests: on tiny models that write what they are made to write."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import structlog
from suffixsvc_driver.cost import key_of
from suffixsvc_driver.cost_file import save_curve
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers.worker_layer import WorkerOptions
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.settings_file import DraftModelSettings, TargetSettings
from suffixsvc_driver.targets.llama_model import file_digest

from suffixsvc import cli
from suffixsvc.cli import generate_draft
from support.serving import PATIENCE_S

#: options of every run
QUICK = ("--threads", "1")
#: what steps are said to cost: where a plain one takes a second, no question is too dear
CURVE = CostCurve.guessed(16, seconds_per_step=1.0)
TARGET = TargetSettings(threads=1)


@dataclass
class Ran:
    """What a run left."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[dict[str, Any]]:
        """The JSON of each turn."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Generating:
    """Runs the verb in this process, where the models of a test module are loaded from a warm disk."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    home: Path
    #: of the runs; decides which kept curve they find
    target: TargetSettings = TARGET

    def __call__(self, *arguments: object, stdin: str | bytes = "") -> Ran:
        raw = stdin if isinstance(stdin, bytes) else stdin.encode()
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        keep_curve(arguments[0], self.home, self.target)
        self.capsys.readouterr()
        code = cli.main(["generate", *map(str, arguments), *QUICK])
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)


def generating(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> Iterator[Generating]:
    """The body of a fixture: runs have a home of their own, and the log is as it was before."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "120")
    # what steps of a tiny model take is a matter of the machine's load, and so would be what is drafted
    monkeypatch.setattr(LiveCurve, "observe", lambda *_: None)
    # and whether a draft model answers in time
    usual = generate_draft._options

    def patient(settings: DraftModelSettings, curve: CostCurve) -> WorkerOptions:
        return {**usual(settings, curve), "timeout_seconds": PATIENCE_S, "wait_seconds": PATIENCE_S}

    monkeypatch.setattr(generate_draft, "_options", patient)
    yield Generating(capsys, monkeypatch, home)
    structlog.reset_defaults()


def keep_curve(model: object, home: Path, target: TargetSettings = TARGET) -> None:
    """Let runs on this model find :data:`CURVE`, as if it had been measured."""
    if not isinstance(model, Path) or model.stat().st_size < 100:
        return  # a name, or something that is no model
    loaded = SimpleNamespace(path=model, digest=file_digest(model), experts_used=target.experts_used)
    said = target.context_settings(threads=1, context_size=1)
    costs = tuple(CURVE.cost(width) for width in range(said.max_width + 1))
    curve = CostCurve(costs, CURVE.seconds_per_step)
    # what suits the model is not known here
    for flash in (True, False) if said.flash_attention is None else (said.flash_attention,):
        settings = replace(said, flash_attention=flash)
        key = key_of(SimpleNamespace(model=loaded, settings=settings))  # type: ignore[arg-type]  # all it looks at
        save_curve(home / "cost" / key.file_name(), key, curve, {})


def process(*arguments: object, home: Path, **streams: Any) -> subprocess.Popen[str]:
    """The verb as a process of its own; what it says can be read unless ``streams`` say otherwise."""
    keep_curve(arguments[0], home)
    command = [sys.executable, "-m", "suffixsvc.cli", "generate", *map(str, arguments), *QUICK]
    environment = {**os.environ, "SUFFIXSVC_HOME": str(home), "COLUMNS": "120"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command, text=True, env=environment, preexec_fn=_hear_interrupts, **{**pipes, **streams}
    )


def _hear_interrupts() -> None:
    """A shell starts what runs in the background with Ctrl-C ignored, and children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A pseudo-terminal: what runs on its ``side`` takes it for one."""

    def __init__(self) -> None:
        self._ours, self.side = pty.openpty()
        self.seen = ""
        self._waited_for = 0

    def read_until(self, text: str) -> None:
        """Wait until it shows a text behind what was waited for before; "" reads to the end."""
        deadline = time.monotonic() + PATIENCE_S
        while not text or text not in self.seen[self._waited_for :]:
            assert time.monotonic() < deadline, self.seen
            if not select.select([self._ours], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(self._ours, 4096)
            except OSError:  # the other side is closed
                piece = b""
            if not piece:
                assert not text, self.seen
                return
            self.seen += piece.decode("utf-8", "replace").replace("\r\n", "\n")
        self._waited_for = self.seen.index(text, self._waited_for) + len(text)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ours)

    def close_side(self) -> None:
        """Only the process has it open from now on."""
        os.close(self.side)
