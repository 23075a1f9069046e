"""Child processes that never outlive their parent: suffixsvc commands and other programs.

Each child leads its own process group, so that Ctrl-C in the terminal reaches only the parent, which then
stops its children in order: SIGTERM, a wait, SIGKILL. Three mechanisms ensure this: the `with` block,
`atexit`, and the launcher parent_death.py for a parent that is killed itself.
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
from typing import Final, Self

from suffixsvc.errors import ServiceError, ServiceUnavailableError

_LAUNCHER: Final = Path(__file__).with_name("parent_death.py")
_STOP_SECONDS: Final = 8.0
_POLL_SECONDS: Final = 0.05
#: prefixes of environment variables that children do not inherit (docs/configuration.md)
_OWN_VARIABLES: Final = ("SUFFIXSVC_SERVE_", "SUFFIXSVC_DRAFT_WORKER_", "SUFFIXSVC_OPENAI_", "NOTIFY_SOCKET")
_LOG_LINES: Final = 12


class ChildProcess:
    """A running command, started by :meth:`ChildProcesses.start`."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        """The process id, which is also its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL and wait: the process cannot write anything further, as in a crash."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM and wait; send SIGKILL if that takes too long. Idempotent."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self) -> str:
        """Return the last lines of its output."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        return ""

    def _signal(self, number: signal.Signals) -> None:
        # after the child was reaped, its pid may be reused by another process group
        if not self.running:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class ChildProcesses:
    """The children of a program; leaving the `with` block stops them, the last started first.

    Args:
        folder: folder of their log files, one per child.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[ChildProcess] = []

    def __enter__(self) -> Self:
        atexit.register(self.close)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        atexit.unregister(self.close)

    def start(
        self, name: str, command: Sequence[str], ready: Callable[[], bool], timeout_seconds: float = 120.0
    ) -> ChildProcess:
        """Start ``suffixsvc COMMAND...`` and wait until ``ready()`` holds.

        Raises:
            ServiceUnavailableError: it ended, or was not ready in time; the message ends with its output.
        """
        line = [sys.executable, "-m", "suffixsvc_cli", *command]
        return self.start_program(name, line, ready, timeout_seconds)

    def start_service(self, data: Path, *listen: str, options: Sequence[str] = ()) -> ChildProcess:
        """Start ``suffixsvc serve`` on the folder ``data`` at these addresses, with further options.

        See :meth:`ready_file`.

        Raises:
            As :meth:`start`.
        """
        addresses = [part for address in listen for part in ("--listen", address)]
        return self._start_server("service", ["serve", "--data", str(data), *options, *addresses])

    def start_draft_worker(
        self,
        model: Path,
        listen: str,
        *,
        threads: int,
        context_size: int | None = None,
        slots: int | None = None,
        options: Sequence[str] = (),
    ) -> ChildProcess:
        """Start ``suffixsvc draft-worker``, with further options; see :meth:`ready_file`.

        Raises:
            As :meth:`start`.
        """
        command = ["draft-worker", "--model", str(model.absolute()), "--threads", str(threads)]
        command += ["--context", str(context_size)] if context_size else []
        command += ["--slots", str(slots)] if slots else []
        return self._start_server("draft worker", [*command, *options, "--listen", listen])

    def ready_file(self, name: str) -> Path:
        """Return the path of the JSON file with its addresses that a server writes when it is ready."""
        return self.folder / f"{name}.ready"

    def _start_server(self, name: str, command: Sequence[str]) -> ChildProcess:
        ready = self.ready_file(name)
        ready.unlink(missing_ok=True)
        return self.start(name, [*command, "--ready-file", str(ready)], ready.exists)

    def start_program(
        self, name: str, line: Sequence[str], ready: Callable[[], bool], timeout_seconds: float = 120.0
    ) -> ChildProcess:
        """Start any program by its command line; otherwise as :meth:`start`.

        Variables that set options of servers, or name the service manager, are for this program, not for its
        children.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        log = self.folder / f"{name}.log"
        # -I -S: it imports nothing of a package
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid())]
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  # this interpreter, then the caller's command line
                [*launcher, *line],
                env=inherited,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child = ChildProcess(name, process, log)
        self._children = [*(other for other in self._children if other.running), child]
        deadline = time.monotonic() + timeout_seconds
        while not _is_ready(ready):
            if not child.running:
                raise ServiceUnavailableError(
                    f"the {name} did not start", got=f"exit code {process.returncode}: {child.tail()}"
                )
            if time.monotonic() > deadline:
                raise ServiceUnavailableError(
                    f"the {name} must be ready within {timeout_seconds:.0f} s", got=child.tail()
                )
            time.sleep(_POLL_SECONDS)
        return child

    def close(self) -> None:
        """Stop every child. Idempotent."""
        while self._children:
            self._children.pop().stop()


def _is_ready(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except (ServiceError, OSError):
        return False
