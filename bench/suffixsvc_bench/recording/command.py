"""Terminal output of `suffixsvc bench record`: progress, and a summary at the end."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from suffixsvc.runtime.stop_signals import stop_on_signals
from suffixsvc_bench.recording.options import RecordingOptions
from suffixsvc_bench.recording.run import Recording, open_recording
from suffixsvc_bench.report.output import report_progress
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.workloads import Task

#: interval of progress lines without a terminal
LINE_SECONDS: Final = 30.0


def run_record(options: RecordingOptions) -> None:
    """See the verb's help.

    Raises:
        SuffixError: see :func:`open_recording`.
        KeyboardInterrupt: a signal stopped it; the summary was printed.
    """
    with stop_on_signals() as signals, open_recording(options, signals.check) as recording:
        try:
            with report_progress() as report:
                last = time.monotonic()

                def recorded(_: Task) -> None:
                    nonlocal last
                    now = time.monotonic()
                    if sys.stderr.isatty() or now - last >= LINE_SECONDS:
                        last = now
                        report(*_progress(recording))

                recording.run(recorded)
        finally:
            _print(_summary(options, recording), as_json=options.as_json)


def _progress(recording: Recording) -> tuple[str, float]:
    """Description of the progress, and the completed fraction of this run."""
    workloads = recording.workload_progress
    done = sum(each.recorded_now for each in workloads.values())
    left = sum(each.left for each in workloads.values())
    speed = sum(each.tokens_now for each in workloads.values()) / recording.seconds
    minutes = recording.seconds / done * left / 60
    held = ", ".join(f"{name} {each.tokens:,}" for name, each in workloads.items())
    text = f"{done} tasks, {left} left, about {minutes:.0f} min; {speed:.1f} tokens/s; tokens so far: {held}"
    return text, done / (done + left)


def _summary(options: RecordingOptions, recording: Recording) -> dict[str, Any]:
    workloads = recording.workload_progress
    return {
        "model": Path(options.model).stem,
        "threads": options.threads,
        "width": options.width,
        "seconds": recording.seconds,
        "workloads": {
            name: {"file": str(options.out_dir / f"{name}.jsonl"), **asdict(each)}
            for name, each in workloads.items()
        },
        "complete": not any(each.left for each in workloads.values()),
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
