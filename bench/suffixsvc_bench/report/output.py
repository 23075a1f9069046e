"""Output of the bench verbs: progress on stderr, results on stdout, and checks of output paths before a long
run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from suffixsvc.errors import InvalidConfigError, InvalidInputError, SuffixError
from suffixsvc_bench.report.provenance import Provenance
from suffixsvc_bench.report.tables import Grid, print_grid

#: called with (current task, completed fraction of the run, 0..1)
Report = Callable[[str, float], None]


@contextmanager
def report_progress() -> Iterator[Report]:
    """Progress of a run on stderr: a bar on a terminal, else one line per task."""
    console = Console(file=sys.stderr)
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    plain = not console.is_terminal
    printed = ""
    with Progress(*columns, console=console, transient=True, disable=plain) as bar:
        shown = bar.add_task("", total=1.0)

        def report(task: str, done: float) -> None:
            nonlocal printed
            bar.update(shown, description=task, completed=done)
            if plain and task != printed:
                printed = task
                print(f"{done:4.0%} {task}", file=sys.stderr, flush=True)

        yield report


def print_results(
    results: Mapping[str, Any],
    parts: Callable[[Mapping[str, Any]], Sequence[Grid | str]],
    *,
    as_json: bool,
    seed: int | None = None,
) -> None:
    """Print results as JSON, or as tables and sentences, with their provenance at the end.

    Args:
        results: with the key "provenance".
        parts: makes tables and sentences from them.
        seed: of the run, printed with the provenance.
    """
    if as_json:
        print(json.dumps(results, indent=2))
        return
    console = Console()
    for part in parts(results):
        if isinstance(part, Grid):
            print_grid(console, part)
        else:
            console.print(part, soft_wrap=True)
    origin = Provenance(**results["provenance"]).line()
    line = origin if seed is None else f"seed {seed}, {origin}"
    console.print(line, style="dim", highlight=False, soft_wrap=True)


def read_json(path: Path, message: str, kind: type[SuffixError] = InvalidInputError, **details: Any) -> Any:
    """Read a JSON file.

    Args:
        message, kind, details: message, class and further arguments of the error.

    Raises:
        SuffixError: of class ``kind``, if the file is not readable JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise kind(message, got=str(error), **details) from None


def require_file_path(path: Path | None, option: str = "--report") -> None:
    """Check that the file of an option can be created; None is accepted.

    Raises:
        InvalidConfigError: it is a folder, or its folder is missing or not writable.
    """
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidConfigError(
            f"{option} must be a file in a writable folder",
            got=repr(str(path)),
            remedy=f"Name a file in a folder that exists and can be written: {option} FILE.",
        )


def require_folder(folder: Path | None) -> None:
    """Check that files can be created in this folder; None is accepted.

    Raises:
        InvalidInputError: it is missing or not writable.
    """
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InvalidInputError("--folder must be a writable folder", got=str(folder))
