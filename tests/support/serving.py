"""Real services for tests: one in this process, one in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from suffixsvc import Limits, SuffixCache
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from support.forked_verbs import ForkedVerb, start_verb

#: for conditions that come true soon; how soon is no test's business
PATIENCE_S = 300.0


@contextlib.contextmanager
def socket_dir() -> Iterator[Path]:
    """A folder with a path short enough for unix sockets, which pytest's own folders may not have."""
    folder = Path(tempfile.mkdtemp(prefix="sfx-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def serving(
    cache: SuffixCache, address: str, limits: Limits | None = None, **options: Any
) -> Iterator[tuple[SuffixServer, str]]:
    """A server in this process; the address to connect to. ``options``: of SuffixServer."""
    server = SuffixServer(cache, [parse_address(address)], limits=limits, **options)
    try:
        [bound] = server.start()
        yield server, bound
    finally:
        server.drain()


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait until something is true; the longer it has taken, the less often it is looked at."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        assert waited < PATIENCE_S, f"not true in time: {what}"
        time.sleep(min(0.1, 0.01 + waited / 20))


class ServeProcess:
    """`suffixsvc serve` as a process of its own, on a unix socket.

    Args: from_shell: start an interpreter, as a shell does; else the process is forked from one that has
    loaded the modules, for a tenth of the CPU time. constants: values of modules' constants by their full
    names, not from a shell. environ: start an interpreter with these variables, as LD_PRELOAD needs it.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        listen: tuple[str, ...] | None = None,
        from_shell: bool = False,
        constants: Mapping[str, float] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        assert not (from_shell and (constants or environ))
        self.folder = folder
        self.from_shell = from_shell
        self.constants = constants or {}
        self.environ = environ
        self.socket = folder / "s.sock"
        self.address = f"unix:{self.socket}"
        self.ready_file = folder / "ready.json"
        self._options = options
        self._listen = listen or (self.address,)
        self.process: subprocess.Popen[str] | ForkedVerb | None = None

    def launch(self) -> subprocess.Popen[str] | ForkedVerb:
        """The process, which may refuse to start."""
        listen = [part for address in self._listen for part in ("--listen", address)]
        arguments = ["serve", "--data", str(self.folder / "data"), *listen]
        arguments += ["--ready-file", str(self.ready_file), *self._options]
        if self.from_shell:
            return spawn([sys.executable, "-m", "suffixsvc_cli", *arguments])
        if self.environ is not None:
            child = Path(__file__).with_name("verb_child.py")
            return spawn([sys.executable, str(child), json.dumps(self.constants), *arguments], self.environ)
        return start_verb(*arguments, constants=self.constants)

    def start(self) -> Self:
        self.ready_file.unlink(missing_ok=True)
        self.process = self.launch()
        eventually(lambda: self.ready_file.exists() or self.process_ended, "the service is ready")
        if self.process_ended:
            assert self.process is not None
            raise AssertionError(f"exit code {self.process.poll()}: {self.output()}")
        return self

    @property
    def process_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def ready(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.ready_file.read_text())
        return told

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            self._wait_until_stopped(self.process.pid)

    @staticmethod
    def _wait_until_stopped(pid: int) -> None:
        """On a busy machine threads run on for a moment after the call that stops them returned."""
        tasks = Path(f"/proc/{pid}/task")
        deadline = time.monotonic() + PATIENCE_S
        while tasks.is_dir():  # elsewhere than on Linux there is nothing to ask
            states = [task.read_text().rpartition(")")[2].split()[0] for task in tasks.glob("*/stat")]
            if all(state in "TtZX" for state in states):
                return
            assert time.monotonic() < deadline, f"process {pid} did not stop: {states}"
            time.sleep(0.002)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(PATIENCE_S)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.send(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def output(self) -> str:
        assert self.process is not None
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    self.send(signal.SIGCONT)
                self.kill()
            assert self.process.stderr is not None
            self.process.stderr.close()


def spawn(command: list[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)


class Blocking:
    """An object with coroutine methods, used without await: one suite then runs the asyncio client, too."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            result = value(*args, **kwargs)
            if isinstance(result, Coroutine):
                result = asyncio.run_coroutine_threadsafe(result, self._loop).result(PATIENCE_S)
            return Blocking(result, self._loop) if type(result).__name__.startswith("Async") else result

        return call


@contextlib.contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
