"""Progress bars of verbs: on a terminal, on stderr, gone when they are done; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, ProgressColumn

__all__ = ["progress_bar", "progress_bars"]


def progress_bars(*columns: ProgressColumn) -> Progress:
    """Bars with these columns; without any, rich's own."""
    console = Console(stderr=True)
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """One bar; what it gives is told how much is done, of how much.

    Args:
        total: where that is known before the first is done.
    """
    with progress_bars() as bars:
        task = bars.add_task(title, total=total)
        yield lambda done, total: bars.update(task, completed=done, total=total)
