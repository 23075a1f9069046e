"""Terminal output of ``suffixsvc build``: progress bars, then a table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from suffixsvc_caches.building.lookup_caches import LookupFiles, LookupSpec, WrittenFile
from suffixsvc_caches.building.run import BuildObserver, BuildResult
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.counting.plan import Progress
from suffixsvc_caches.sizes import format_size
from suffixsvc_cli.base.bars import progress_bars
from suffixsvc_cli.base.tables import plain_table


class BuildBars(BuildObserver):
    """Progress bars on a terminal: reading and counting, merging, loading. Nothing elsewhere.

    Attributes:
        shown: a context in which they are shown.
        work: folder of intermediate files; None before the build begins.
    """

    def __init__(self) -> None:
        detail = TextColumn("{task.fields[detail]}")
        self.shown = progress_bars(BarColumn(), TaskProgressColumn(), detail, TimeRemainingColumn())
        self._tasks: dict[str, TaskID] = {}
        self._began = time.monotonic()
        self._first_tokens: int | None = None
        self.work: Path | None = None

    def on_work_folder(self, folder: Path) -> None:
        """The build uses this folder for intermediate files."""
        self.work = folder

    def on_count_progress(self, progress: Progress) -> None:
        """Logs are being read and counted."""
        if self._first_tokens is None:
            self._first_tokens, self._began = progress.tokens, time.monotonic()
        rate = (progress.tokens - self._first_tokens) / max(1e-3, time.monotonic() - self._began)
        detail = f"{progress.tokens:,} tokens, {rate:,.0f}/s"
        self._show("reading and counting", progress.bytes_read, progress.bytes_all, detail)

    def on_merge_progress(self, share: float) -> None:
        """Runs are being merged; ``share`` of them is done."""
        self._show("merging", share, 1.0, "")

    def on_load_progress(self, outputs: int) -> None:
        """The corpus is being loaded; ``outputs`` are done."""
        self._show("loading the corpus", outputs, None, f"{outputs:,} outputs")

    def _show(self, title: str, done: float, total: float | None, detail: str) -> None:
        if title not in self._tasks:
            self._tasks[title] = self.shown.add_task(title, total=total, detail=detail)
        self.shown.update(self._tasks[title], completed=done, total=total, detail=detail)


def result_to_dict(spec: BuildSpec, result: BuildResult) -> dict[str, Any]:
    """Result as JSON-able data."""
    counted = result.counted
    return {
        "logs": [str(file.path) for file in result.files],
        "tokenizer": counted.fingerprint,
        "calls": counted.calls,
        "tokens": counted.tokens,
        "duplicates": counted.duplicates,
        "resumed_tokens": counted.resumed_tokens,
        "read": counted.report.as_dict(),
        "static": plain_file(result.caches.static),
        "dynamic": plain_file(result.caches.dynamic),
        "corpus": spec.corpus and {"namespace": spec.corpus.namespace, "outputs": result.corpus_outputs},
    }


def plain_file(written: WrittenFile | None) -> dict[str, Any] | None:
    """A written cache as JSON-able data."""
    if written is None:
        return None
    return {
        "path": str(written.path),
        **{name: getattr(written.manifest, name) for name in ("bytes", "ngrams", "pairs", "xxh3")},
    }


def print_result(spec: BuildSpec, result: BuildResult) -> None:
    """Print the result as text."""
    counted = result.counted
    console = Console()
    typer.echo(counted.report.describe())  # not by rich, which would wrap lines and paths
    again = f", {counted.duplicates:,} duplicates removed" if counted.duplicates else ""
    before = f" ({counted.resumed_tokens:,} of them in an earlier run)" if counted.resumed_tokens else ""
    console.print(f"{counted.tokens:,} tokens counted{before}{again}, tokenizer {counted.fingerprint or '?'}")
    table = caches_table(result.caches)
    if spec.corpus:
        where = f"{spec.corpus.namespace} in {spec.corpus.place}"
        table.add_row("corpus", Text(where), f"{result.corpus_outputs:,} outputs", "")
    console.print(table)
    warn_of_empty(result.caches, spec.static or spec.dynamic)


def warn_of_empty(files: LookupFiles, spec: LookupSpec | None) -> None:
    """Warn of a cache without records, which llama.cpp would load without a message.

    Args:
        spec: pruning options of either file.
    """
    for written, shortest in ((files.static, "2 tokens"), (files.dynamic, "1 token")):
        if written is not None and not written.manifest.pairs:
            typer.echo(f"warning: {written.path} is empty: {_why_empty(shortest, spec)}", err=True)


def _why_empty(shortest: str, spec: LookupSpec | None) -> str:
    given = []
    if spec is not None:
        pruning = {"min-count": spec.min_count > 1, "budget": spec.budget_bytes, "compact": spec.compact}
        given = [f"--{name}" for name, value in pruning.items() if value]
    if not given:
        return f"its shortest n-gram has {shortest}, and no text is longer"
    options = ", ".join(given)
    return f"no n-gram and follower is frequent enough for {options}, or no text is longer than an n-gram"


def caches_table(files: LookupFiles) -> Table:
    """Table of the written caches."""
    written = (("static cache", files.static), ("dynamic cache", files.dynamic))
    rows = [
        (
            name,
            Text(str(file.path)),
            ", ".join(f"{count:,} {order}-grams" for order, count in file.manifest.ngrams.items()),
            format_size(file.manifest.bytes),
        )
        for name, file in written
        if file is not None
    ]
    return plain_table(("output", "", "n-grams", "size"), rows)
