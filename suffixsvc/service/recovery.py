"""Progress of recovery while it rebuilds the indexes: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import structlog

log = structlog.get_logger(__name__)

SECONDS_BETWEEN_LINES = 5.0


@contextlib.contextmanager
def recovery_progress() -> Iterator[Callable[[int, int], None]]:
    """Yields ``progress(done, total)``, the callback that ``SuffixCache`` takes."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console  # noqa: PLC0415 - slow to load, and only terminals draw
    from rich.progress import MofNCompleteColumn, Progress  # noqa: PLC0415 - slow to load, and only terminals draw

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("recovering outputs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines() -> Callable[[int, int], None]:
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= SECONDS_BETWEEN_LINES:
            last = now
            log.info("recovering", outputs=done, of=total)

    return report
