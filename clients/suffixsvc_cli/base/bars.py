"""Progress bars of verbs: on stderr if it is a terminal, removed when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


def progress_bars(*columns: ProgressColumn) -> Progress:
    """Bars with a title and these columns; without columns: bar, percentage, remaining time."""
    console = Console(stderr=True)
    columns = columns or (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    title = TextColumn("{task.description}")
    return Progress(title, *columns, console=console, disable=not console.is_terminal, transient=True)


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """One bar; yields a function that takes the done and the total amount.

    Args:
        total: if known from the start.
    """
    with progress_bars() as bars:
        task = bars.add_task(title, total=total)
        yield lambda done, total: bars.update(task, completed=done, total=total)
