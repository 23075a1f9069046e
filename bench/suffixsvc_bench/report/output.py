"""Output of the bench verbs: progress on stderr, and checks of output paths before a long run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from suffixsvc.errors import InvalidInputError

__all__ = ["ProgressReporter", "require_file_path", "require_folder"]


class ProgressReporter:
    """Progress of a run on stderr: a bar on a terminal, else one line per task."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr)
        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._plain = not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=self._plain)
        self._task = self._bar.add_task("", total=1.0)
        self._printed = ""

    def __enter__(self) -> ProgressReporter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, task: str, done: float) -> None:
        """Report the current task and the completed fraction of the run, 0..1."""
        self._bar.update(self._task, description=task, completed=done)
        if self._plain and task != self._printed:
            self._printed = task
            print(f"{done:4.0%} {task}", file=sys.stderr, flush=True)


def require_file_path(report: Path | None) -> None:
    """Check that a file can be created here; None is accepted.

    Raises:
        InvalidInputError: it is a folder, or its folder is missing or not writable.
    """
    if report is None:
        return
    folder = report.resolve().parent
    if report.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidInputError(f"the report {report} must be a file in a writable folder", got=str(folder))


def require_folder(folder: Path | None) -> None:
    """Check that files can be created in this folder; None is accepted.

    Raises:
        InvalidInputError: it is missing or not writable.
    """
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InvalidInputError("--folder must be a writable folder", got=str(folder))
