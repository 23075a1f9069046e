"""What ``suffixsvc build`` shows: bars while it works, then a table."""

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
from suffixsvc_caches.building import BuildResult, BuildSpec, LookupFiles, LookupSpec, Written
from suffixsvc_caches.counting import Progress
from suffixsvc_caches.sizes import show_size

from suffixsvc.cli.bars import progress_bars

__all__ = ["BuildBars", "as_plain", "caches_table", "plain_file", "print_result", "warn_of_empty"]


class BuildBars:
    """Progress bars on a terminal, nothing elsewhere: reading and counting, merging, loading."""

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
        #: where the build keeps what is not finished; None: it has not begun
        self.work: Path | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def working_in(self, folder: Path) -> None:
        self.work = folder

    def counting(self, progress: Progress) -> None:
        if self._first_tokens is None:
            self._first_tokens, self._began = progress.tokens, time.monotonic()
        rate = (progress.tokens - self._first_tokens) / max(1e-3, time.monotonic() - self._began)
        detail = f"{progress.tokens:,} tokens, {rate:,.0f}/s"
        self._show("reading and counting", progress.bytes_read, progress.bytes_all, detail)

    def merging(self, share: float) -> None:
        self._show("merging", share, 1.0, "")

    def loading(self, outputs: int) -> None:
        self._show("loading the corpus", outputs, None, f"{outputs:,} outputs")

    def _show(self, title: str, done: float, total: float | None, detail: str) -> None:
        if title not in self._tasks:
            self._tasks[title] = self._bars.add_task(title, total=total, detail=detail)
        self._bars.update(self._tasks[title], completed=done, total=total, detail=detail)


def as_plain(spec: BuildSpec, result: BuildResult) -> dict[str, Any]:
    """What was built, for machines."""
    counted = result.counted
    return {
        "logs": [str(file.path) for file in result.files],
        "tokenizer": counted.fingerprint,
        "calls": counted.calls,
        "tokens": counted.tokens,
        "duplicates": counted.duplicates,
        "resumed_tokens": counted.resumed_tokens,
        "read": counted.tally.as_dict(),
        "static": plain_file(result.static),
        "dynamic": plain_file(result.dynamic),
        "corpus": {"namespace": spec.corpus.namespace, "outputs": result.corpus_outputs}
        if spec.corpus
        else None,
    }


def plain_file(written: Written | None) -> dict[str, Any] | None:
    """A cache that was written, for machines."""
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
    """What was built, for people."""
    counted = result.counted
    console = Console()
    typer.echo(counted.tally.describe())  # a line is a line: rich would break them, paths too
    again = f", {counted.duplicates:,} duplicates left out" if counted.duplicates else ""
    before = f" ({counted.resumed_tokens:,} of them before)" if counted.resumed_tokens else ""
    console.print(f"{counted.tokens:,} tokens counted{before}{again}, tokenizer {counted.fingerprint or '?'}")
    table = caches_table(LookupFiles(result.static, result.dynamic))
    if spec.corpus:
        where = f"{spec.corpus.namespace} in {spec.corpus.place}"
        table.add_row("corpus", Text(where), f"{result.corpus_outputs:,} outputs", "")
    console.print(table)
    warn_of_empty(LookupFiles(result.static, result.dynamic), spec.static or spec.dynamic)


def warn_of_empty(files: LookupFiles, spec: LookupSpec | None) -> None:
    """Warn of a cache without records: llama.cpp would load it all the same.

    Args:
        spec: what was left out, of either file.
    """
    for written, shortest in ((files.static, "2 tokens"), (files.dynamic, "1 token")):
        if written is not None and not written.pairs:
            typer.echo(f"warning: {written.path} is empty: {_why_empty(shortest, spec)}", err=True)


def _why_empty(shortest: str, spec: LookupSpec | None) -> str:
    left_out = {
        "--min-count": spec is not None and spec.min_count > 1,
        "--budget": spec is not None and spec.budget_bytes is not None,
        "--compact": spec is not None and spec.compact,
    }
    given = [option for option, is_given in left_out.items() if is_given]
    if not given:
        return f"its shortest n-gram has {shortest}, and no text is longer"
    return (
        "no n-gram was seen often enough, and with the same follower often enough, for"
        f" {', '.join(given)}; or no text is longer than an n-gram"
    )


def caches_table(files: LookupFiles) -> Table:
    """Caches that were written, for people."""
    table = Table("made", "", "n-grams", "size", box=None, pad_edge=False)
    for name, written in (("static cache", files.static), ("dynamic cache", files.dynamic)):
        if written is not None:
            by_order = ", ".join(f"{count:,} {order}-grams" for order, count in written.ngrams.items())
            table.add_row(name, Text(str(written.path)), by_order, show_size(written.size_bytes))
    return table
