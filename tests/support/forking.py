"""Fork server of child processes that tests kill, forked from a process that has loaded everything."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

__all__ = ["ForkServer"]


class ForkServer:
    """The parent of the child processes.

    Args: script: a module with a ``live(order)``, which ``support.child_runner`` runs in a process for
    every order. patience_seconds: a child that prints nothing for so long hangs. environ: environment
    variables of the children; None: those of this process.
    """

    def __init__(
        self, script: Path, patience_seconds: float = 300.0, environ: Mapping[str, str] | None = None
    ) -> None:
        self.patience_seconds = patience_seconds
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("child_runner.py")), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environ,
        )
        assert self.process.stdin
        assert self.process.stdout
        self.pid = 0
        self.orders: IO[str] = self.process.stdin
        self.answers = self.process.stdout.fileno()

    def run(self, order: dict[str, Any], hear: Callable[[str], None], kill_after: float | None) -> int:
        """Run one child; its exit status. ``hear`` is called with every line that it prints."""
        self.orders.write(json.dumps(order) + "\n")
        self.pid = 0
        try:
            return self._listen(hear, kill_after)
        except BaseException:
            if self.pid:
                with contextlib.suppress(ProcessLookupError):  # it has ended; the first error matters
                    os.kill(self.pid, signal.SIGKILL)
            raise

    def _listen(self, hear: Callable[[str], None], kill_after: float | None) -> int:
        """Read the child's lines to its end, and kill it ``kill_after`` seconds after its start."""
        kill_at: float | None = None
        rest = b""
        while True:
            wait = self.patience_seconds if kill_at is None else max(0.0, kill_at - time.monotonic())
            if not select.select([self.answers], [], [], wait)[0]:
                assert kill_at is not None, "a child hangs, or never reaches its kill point"
                os.kill(self.pid, signal.SIGKILL)
                kill_at = None
                continue
            data = os.read(self.answers, 1 << 16)
            assert data, "the fork server has exited"
            *lines, rest = (rest + data).split(b"\n")
            for line in map(bytes.decode, lines):
                if line.startswith("pid "):
                    self.pid = int(line.split()[1])
                    kill_at = None if kill_after is None else time.monotonic() + kill_after
                elif line.startswith("done "):
                    self.pid = 0
                    return int(line.split()[1])
                else:
                    hear(line)

    def close(self) -> None:
        self.orders.close()
        self.process.wait(300)
