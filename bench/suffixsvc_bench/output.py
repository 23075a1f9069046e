"""What the verbs share: progress on stderr, and a look at a report's place before hours are spent on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from suffixsvc.errors import InvalidInputError

__all__ = ["Told", "require_folder", "require_place"]


class Told:
    """Progress of a run: a bar on a terminal, a line for each thing that is begun where there is none."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr)
        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._plain = not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=self._plain)
        self._task = self._bar.add_task("", total=1.0)
        self._said = ""

    def __enter__(self) -> Told:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def share(self, what: str, done: float) -> None:
        """``what`` is done now; ``done``, 0..1, of all that is to be done."""
        self._bar.update(self._task, description=what, completed=done)
        if self._plain and what != self._said:
            self._said = what
            print(f"{done:4.0%} {what}", file=sys.stderr, flush=True)


def require_place(report: Path | None) -> None:
    """Raises InvalidInputError where this file could not be written; None: none is wanted."""
    if report is None:
        return
    folder = report.resolve().parent
    if report.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidInputError(
            f"cannot write the report {report}", expected="a file in a folder that can be written to"
        )


def require_folder(folder: Path | None) -> None:
    """Raises InvalidInputError where nothing could be made in this folder; None: none is wanted."""
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InvalidInputError(f"cannot work in {folder}", expected="a folder that can be written to")
