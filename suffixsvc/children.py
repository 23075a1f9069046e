"""Verbs of ours (the service, a draft worker) and other programs as children that never outlive their parent.

Each child leads a process group of its own, so a Ctrl-C in the terminal reaches only the parent, which
then stops its children in order: asked (SIGTERM), waited for, killed. Three nets lie below each other:
the `with` block, `atexit`, and the leash (leash.py) for a parent that is killed itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from suffixsvc.errors import ServiceError, ServiceUnavailableError

__all__ = ["Child", "Children"]

STOP_SECONDS: Final = 8.0
POLL_SECONDS: Final = 0.05
LOG_LINES: Final = 12


class Child:
    """A running command. Made by :meth:`Children.start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: no chance to write anything, as in a crash or a power cut of the process."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for what does not listen. Idempotent."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """The last lines of what it said."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return ""

    def _signal(self, number: signal.Signals) -> None:
        # once the child was waited for, its number may be that of somebody else's group
        if not self.running:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class Children:
    """All children of a program; leaving the `with` block stops them, the last started first.

    Args:
        folder: where what they say goes, a file each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        atexit.register(self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        atexit.unregister(self.close)

    def start(
        self, name: str, command: Sequence[str], ready: Callable[[], bool], timeout_seconds: float = 120.0
    ) -> Child:
        """Start ``suffixsvc COMMAND...`` and wait until ``ready()`` holds.

        Raises:
            ServiceUnavailableError: it ended, or was not ready in time; the message ends with what it said.
        """
        line = [sys.executable, "-m", "suffixsvc.cli", *command]
        return self.start_program(name, line, ready, timeout_seconds)

    def start_service(self, data: Path, *listen: str) -> Child:
        """``suffixsvc serve`` on the folder ``data``, whatever is in it, at these addresses. What it says
        when it is ready lies at :meth:`told`.

        Raises:
            As :meth:`start`.
        """
        command = ["serve", "--data", str(data)]
        return self._start_server("service", [*command, *_each("--listen", listen)])

    def start_draft_worker(
        self,
        model: Path,
        listen: str,
        *,
        threads: int,
        context_size: int | None = None,
        slots: int | None = None,
    ) -> Child:
        """``suffixsvc draft-worker``.

        Raises:
            As :meth:`start`.
        """
        command = ["draft-worker", "--model", str(model.absolute()), "--threads", str(threads)]
        command += ["--context", str(context_size)] if context_size else []
        command += ["--slots", str(slots)] if slots else []
        return self._start_server("draft worker", [*command, "--listen", listen])

    def told(self, name: str) -> Path:
        """What a server of ours of this name writes when it is ready: JSON, its addresses among it."""
        return self.folder / f"{name}.ready"

    def _start_server(self, name: str, command: Sequence[str]) -> Child:
        ready = self.told(name)
        ready.unlink(missing_ok=True)
        return self.start(name, [*command, "--ready-file", str(ready)], ready.exists)

    def start_program(
        self, name: str, line: Sequence[str], ready: Callable[[], bool], timeout_seconds: float = 120.0
    ) -> Child:
        """Start any program, by its whole command line; otherwise as :meth:`start`."""
        log = self.folder / f"{name}.log"
        leash = [sys.executable, "-m", "suffixsvc.leash", str(os.getpid())]
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  # our own interpreter in front of what the caller names
                [*leash, *line],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children = [*(other for other in self._children if other.running), child]
        deadline = time.monotonic() + timeout_seconds
        while not _holds(ready):
            if not child.running:
                raise ServiceUnavailableError(
                    f"the {name} did not start", got=f"exit code {process.returncode}: {child.tail()}"
                )
            if time.monotonic() > deadline:
                raise ServiceUnavailableError(
                    f"the {name} is not ready", expected=f"{timeout_seconds:.0f} s at most", got=child.tail()
                )
            time.sleep(POLL_SECONDS)
        return child

    def close(self) -> None:
        """Stop every child. Idempotent."""
        while self._children:
            self._children.pop().stop()


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (option, value)]


def _holds(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except (ServiceError, OSError):
        return False
