"""`suffixsvc generate` in tests, on tiny models with known outputs."""

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

import suffixsvc_cli as cli
from suffixsvc_cli.generate import draft as generate_draft
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.curve_file import save_curve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.layers.worker_layer import WorkerOptions
from suffixsvc_driver.profile.settings_file import TargetSettings
from suffixsvc_driver.profile.target_cost import key_of
from suffixsvc_driver.targets.llama.model import file_digest
from support.serving import PATIENCE_S
from support.tiny_gguf import SPECIAL

#: options of every run
QUICK = ("--threads", "1")
#: the stored cost curve: a plain step of a second makes every query cheap
CURVE = CostCurve.guessed(16, seconds_per_step=1.0)
TARGET = TargetSettings(threads=1)
#: the line that the model of the fixture ``cycle`` repeats
CYCLE = "abcdefgh\n"
TURN_END = 256 + SPECIAL.index("<|im_end|>")
#: a prompt after which the cycle's text differs from the prompt's beginning
PROMPT = ("abcabcab", "--raw", "--max-tokens", 30)


def cycle_text(tokens: int) -> str:
    """Output of the cycle after "ab"."""
    return (CYCLE[2:] + CYCLE * tokens)[:tokens]


@dataclass
class Ran:
    """Result of a run."""

    code: int
    out: str
    err: str

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The JSON of each turn."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Generating:
    """Runs the verb in this process, where the models of a test module are loaded from a warm disk."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    home: Path
    #: settings of the runs, which determine the stored curve that they find
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
    """The body of a fixture: runs have their own home, and the log configuration is restored."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "120")
    # durations of a tiny model's steps depend on the machine's load, and drafts would depend on them
    monkeypatch.setattr(LiveCurve, "observe", lambda *_: None)
    # timeouts of the draft model depend on the load as well
    patient: WorkerOptions = {"timeout_seconds": PATIENCE_S, "wait_seconds": PATIENCE_S}
    monkeypatch.setattr(generate_draft, "TIMEOUTS", patient)
    yield Generating(capsys, monkeypatch, home)
    structlog.reset_defaults()


def keep_curve(model: object, home: Path, target: TargetSettings = TARGET) -> None:
    """Store :data:`CURVE` for runs on this model, as if it had been measured."""
    if not isinstance(model, Path) or model.stat().st_size < 100:
        return  # a name, or a file that is not a model
    loaded = SimpleNamespace(
        path=model, digest=file_digest(model), experts_used=target.experts_used, device="cpu"
    )
    said = target.context_settings(threads=1, context_size=1)
    costs = tuple(CURVE.cost(width) for width in range(said.max_width + 1))
    curve = CostCurve(costs, CURVE.seconds_per_step)
    # the default of the model is not known here
    for flash in (True, False) if said.flash_attention is None else (said.flash_attention,):
        settings = replace(said, flash_attention=flash)
        key = key_of(SimpleNamespace(model=loaded, settings=settings))  # type: ignore[arg-type]  # all it looks at
        save_curve(home / "cost" / key.file_name(), key, curve, {})


def process(*arguments: object, home: Path, **streams: Any) -> subprocess.Popen[str]:
    """The verb as a separate process; its output is piped unless ``streams`` say otherwise."""
    keep_curve(arguments[0], home)
    command = [sys.executable, "-m", "suffixsvc_cli", "generate", *map(str, arguments), *QUICK]
    environment = {**os.environ, "SUFFIXSVC_HOME": str(home), "COLUMNS": "120"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command, text=True, env=environment, preexec_fn=_accept_interrupts, **{**pipes, **streams}
    )


def _accept_interrupts() -> None:
    """Default handler of SIGINT: children of a background job of a shell ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A pseudo-terminal: ``side`` is a terminal for a process."""

    def __init__(self) -> None:
        self._ours, self.side = pty.openpty()
        self.seen = ""
        self._waited_for = 0

    def read_until(self, text: str) -> None:
        """Wait until it shows a text after the one waited for before; "" reads to the end."""
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
        """Type a text."""
        os.write(self._ours, text.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ours)

    def close_side(self) -> None:
        """Only the process has it open from now on."""
        os.close(self.side)
