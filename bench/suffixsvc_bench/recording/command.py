"""Terminal output of `suffixsvc bench record`: progress, and a summary at the end."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from suffixsvc_bench.recording.run import Recording, RecordingOptions, open_recording
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.stopping import stop_on_signals
from suffixsvc_bench.workloads import Task

__all__ = ["run_record"]

#: interval of progress lines without a terminal
LINE_SECONDS: Final = 30.0


def run_record(options: RecordingOptions, *, as_json: bool) -> None:
    """See the verb's help.

    Raises:
        SuffixError: see :func:`open_recording`.
        KeyboardInterrupt: a signal stopped it; the summary was printed.
    """
    with stop_on_signals() as raise_if_stopped, open_recording(options, raise_if_stopped) as recording:
        try:
            with _ProgressBar(recording) as bar:
                recording.run(bar.recorded)
        finally:
            _print(_summary(options, recording), as_json=as_json)


class _ProgressBar:
    """Progress on stderr: a bar on a terminal, else a line every 30 seconds."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        console = Console(file=sys.stderr, highlight=False)
        self._plain = not console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            transient=True,
            disable=self._plain,
        )
        self._task = self._bar.add_task(
            "", total=sum(progress.left for progress in recording.workload_progress.values())
        )
        self._last_line = time.monotonic()

    def __enter__(self) -> _ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def recorded(self, task: Task) -> None:
        """The answer to a task is in its file."""
        workload_progress = self._recording.workload_progress
        speed = sum(progress.tokens_now for progress in workload_progress.values()) / self._recording.seconds
        held = ", ".join(f"{name} {progress.tokens:,}" for name, progress in workload_progress.items())
        text = f"{speed:.1f} tokens/s; tokens so far: {held}"
        self._bar.update(self._task, advance=1, description=text)
        now = time.monotonic()
        if self._plain and now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            done = sum(progress.recorded_now for progress in workload_progress.values())
            left = sum(progress.left for progress in workload_progress.values())
            minutes = self._recording.seconds / done * left / 60
            print(f"{done} tasks, {left} left, about {minutes:.0f} min; {text}", file=sys.stderr, flush=True)


def _summary(options: RecordingOptions, recording: Recording) -> dict[str, Any]:
    workload_progress = recording.workload_progress
    return {
        "model": options.model.stem,
        "threads": options.threads,
        "width": options.width,
        "seconds": recording.seconds,
        "workloads": {
            name: {"file": str(options.out_dir / f"{name}.jsonl"), **progress.as_dict()}
            for name, progress in workload_progress.items()
        },
        "complete": not any(progress.left for progress in workload_progress.values()),
        "provenance": provenance().as_dict(),
    }


def _print(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    for name, each in summary["workloads"].items():
        print(
            f"{name}: {each['recorded']} of {each['tasks']} tasks, {each['tokens']:,} tokens "
            f"in {each['file']} (this run: {each['recorded_now']} tasks, {each['tokens_now']:,} tokens)"
        )
    tokens = sum(each["tokens_now"] for each in summary["workloads"].values())
    print(f"{tokens:,} tokens in {summary['seconds']:.0f} s, {tokens / summary['seconds']:.1f} tokens/s")
    if not summary["complete"]:
        print("The same command continues where this one ended.")
