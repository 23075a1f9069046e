"""Process of a draft worker that is started for a target, and started again if it ends.

    running ──ended──> pause ──> started again, at the same address ──> running
                         └── so often in a row: not again

Sessions go on without drafts meanwhile. They find the new process by the address, and check its vocabulary
before its drafts are used.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.runtime.child_process import ChildProcess, ChildProcesses
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.targets.llama.offload import Offload

_log = structlog.get_logger(__name__)

#: smallest context of a worker
_LEAST_CONTEXT: Final = 256
#: seconds between two checks that the process runs
_WATCH_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class DraftProcess:
    """Settings of a worker process that is started.

    Attributes:
        threads: compute threads.
        context_size: tokens of a sequence.
        slots: sequences that keep their KV.
        streams: sessions that are open at the same time; None: the worker's default.
        batch: sessions computed in one batch; 0: the worker measures which width pays.
        kv_type: type of its KV; None: the worker's default.
        offload: the part of the model that is on GPUs.
        restarts: how often in a row it is started again after it ended.
        pause_seconds: before it is started again, doubling with each time in a row.
        stable_seconds: a process that ran for so long ends the row.
    """

    threads: int = 1
    context_size: int = 4096
    slots: int = 1
    streams: int | None = None
    batch: int = 0
    kv_type: str | None = None
    offload: Offload = field(default_factory=Offload)
    restarts: int = 0
    pause_seconds: float = 1.0
    stable_seconds: float = 600.0

    def arguments(self) -> list[str]:
        """Return the options of ``suffixsvc draft-worker`` beside threads, context and slots."""
        found = [*self.offload.arguments(), "--batch", str(self.batch)]
        found += ["--drivers", str(self.streams)] if self.streams else []
        return found + (["--kv-type", self.kv_type] if self.kv_type else [])


class RunningDraftProcess(ClosedOnExit):
    """A worker process of a model. It ends with this object, whose close is idempotent.

    Args:
        model: the draft model.
        settings: of the process.

    Attributes:
        address: where it listens, also after a restart.
        child: the process that was started last.

    Raises:
        ServiceUnavailableError: it did not start.
    """

    def __init__(self, model: Path, settings: DraftProcess) -> None:
        self._model, self._settings = model, settings
        self._closing = threading.Event()
        self._final = False  # it is not started again
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="suffixsvc-")))
            self.address = f"unix:{folder / 'draft.sock'}"
            self._children = stack.enter_context(ChildProcesses(folder))
            self.child = self._start()
            # the kernel ends a process with the thread that started it: this one lasts as long as restarts
            self._thread = threading.Thread(target=self._watch, name="suffixsvc-draft-process", daemon=True)
            self._opened = stack.pop_all()
        self._thread.start()

    def _start(self) -> ChildProcess:
        settings = self._settings
        return self._children.start_draft_worker(
            self._model,
            self.address,
            threads=settings.threads,
            context_size=max(_LEAST_CONTEXT, settings.context_size),
            slots=settings.slots,
            options=settings.arguments(),
        )

    def _watch(self) -> None:
        """Start the process again where it ends, until it has ended too often or is closed."""
        settings = self._settings
        restarts, uptime = 0, 0.0
        while not self._closing.wait(_WATCH_SECONDS):
            if self.child.running:
                uptime += _WATCH_SECONDS
                continue
            if self._final:
                break
            restarts = 0 if uptime > settings.stable_seconds else restarts
            if restarts >= settings.restarts:
                _log.error("the draft worker has ended and is not started again", output=self.child.tail())
                break
            pause = settings.pause_seconds * 2**restarts
            restarts, uptime = restarts + 1, 0.0
            _log.warning("the draft worker has ended and is started again", seconds=pause, restart=restarts)
            if self._closing.wait(pause) or self._final:
                break
            try:
                self.child = self._start()
            except (ServiceUnavailableError, OSError) as error:  # the next round tries again
                self._children.close()  # one that was not ready in time
                if not self._closing.is_set():
                    _log.warning("the draft worker cannot be started again", reason=str(error))
        self._closing.wait()

    def stop_restarting(self) -> None:
        """Do not start the process again: what ends it may end this one, too."""
        self._final = True

    def close(self) -> None:
        """Stop the process."""
        self._closing.set()
        while self._thread.is_alive():  # it may be starting a process
            self._children.close()
            self._thread.join(_WATCH_SECONDS)
        self._opened.close()
