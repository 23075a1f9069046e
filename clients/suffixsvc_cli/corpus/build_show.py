"""Terminal output of ``suffixsvc build``: progress bars, then a table."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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

from suffixsvc_caches.building import (
    BuildObserver,
    BuildResult,
    BuildSpec,
    LookupFiles,
    LookupSpec,
    WrittenFile,
)
from suffixsvc_caches.counting import Progress
from suffixsvc_caches.sizes import format_size
from suffixsvc_cli.base.bars import progress_bars

__all__ = ["BuildBars", "caches_table", "plain_file", "print_result", "result_to_dict", "warn_of_empty"]


class BuildBars(BuildObserver):
    """Progress bars on a terminal: reading and counting, merging, loading. Nothing elsewhere."""

    def __init__(self) -> None:
        self._bars = progress_bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._began = time.monotonic()
        self._first_tokens: int | None = None
        #: folder of intermediate files; None before the build begins
        self.work: Path | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

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
            self._tasks[title] = self._bars.add_task(title, total=total, detail=detail)
        self._bars.update(self._tasks[title], completed=done, total=total, detail=detail)


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
        "static": plain_file(result.static),
        "dynamic": plain_file(result.dynamic),
        "corpus": {"namespace": spec.corpus.namespace, "outputs": result.corpus_outputs}
        if spec.corpus
        else None,
    }


def plain_file(written: WrittenFile | None) -> dict[str, Any] | None:
    """A written cache as JSON-able data."""
    if written is None:
        return None
    return {
        "path": str(written.path),
        "bytes": written.size_bytes,
        "ngrams": written.ngrams,
        "pairs": written.pairs,
        "xxh3": written.xxh3,
    }


def print_result(spec: BuildSpec, result: BuildResult) -> None:
    """Print the result as text."""
    counted = result.counted
    console = Console()
    typer.echo(counted.report.describe())  # not by rich, which would wrap lines and paths
    again = f", {counted.duplicates:,} duplicates removed" if counted.duplicates else ""
    before = f" ({counted.resumed_tokens:,} of them in an earlier run)" if counted.resumed_tokens else ""
    console.print(f"{counted.tokens:,} tokens counted{before}{again}, tokenizer {counted.fingerprint or '?'}")
    table = caches_table(LookupFiles(result.static, result.dynamic))
    if spec.corpus:
        where = f"{spec.corpus.namespace} in {spec.corpus.place}"
        table.add_row("corpus", Text(where), f"{result.corpus_outputs:,} outputs", "")
    console.print(table)
    warn_of_empty(LookupFiles(result.static, result.dynamic), spec.static or spec.dynamic)


def warn_of_empty(files: LookupFiles, spec: LookupSpec | None) -> None:
    """Warn of a cache without records, which llama.cpp would load without a message.

    Args:
        spec: pruning options of either file.
    """
    for written, shortest in ((files.static, "2 tokens"), (files.dynamic, "1 token")):
        if written is not None and not written.pairs:
            typer.echo(f"warning: {written.path} is empty: {_why_empty(shortest, spec)}", err=True)


def _why_empty(shortest: str, spec: LookupSpec | None) -> str:
    pruning = {
        "--min-count": spec is not None and spec.min_count > 1,
        "--budget": spec is not None and spec.budget_bytes is not None,
        "--compact": spec is not None and spec.compact,
    }
    given = [option for option, is_given in pruning.items() if is_given]
    if not given:
        return f"its shortest n-gram has {shortest}, and no text is longer"
    return (
        f"no n-gram and follower is frequent enough for {', '.join(given)},"
        " or no text is longer than an n-gram"
    )


def caches_table(files: LookupFiles) -> Table:
    """Table of the written caches."""
    table = Table("output", "", "n-grams", "size", box=None, pad_edge=False)
    for name, written in (("static cache", files.static), ("dynamic cache", files.dynamic)):
        if written is not None:
            by_order = ", ".join(f"{count:,} {order}-grams" for order, count in written.ngrams.items())
            table.add_row(name, Text(str(written.path)), by_order, format_size(written.size_bytes))
    return table
