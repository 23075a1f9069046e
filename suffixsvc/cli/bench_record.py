"""``suffixsvc bench record``: a real model's answers to the workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench_record"]


def bench_record(
    workloads: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD...", help="sql, json, code: one or several.")
    ],
    out_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where WORKLOAD.jsonl is written, or gone on with.")
    ],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A GGUF or a name of `models list`.")
    ] = "qwen2.5-coder-1.5b",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the model. Default: one a physical core.")
    ] = None,
    width: Annotated[
        int,
        typer.Option(min=1, max=128, help="Answers under way at once: one step computes a token of each."),
    ] = 32,
    limit: Annotated[
        int, typer.Option(min=0, help="Only the first so many tasks of each workload; 0 = all.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON for machines.")] = False,
) -> None:
    """Record what a real model answers to hundreds of tasks: SQL, JSON, Python code.

    These logs are what the ready-made caches are built from. Each line is one call with its token ids, its
    task and its split: answers to held_out tasks judge a cache and must not go into it. The model answers
    greedily, many tasks side by side in one batch.

    Several workloads take turns, so that all are of use if you stop early. Ctrl-C or even kill -9 loses only
    the answers under way: the same command goes on, and skips what is there. An answer of another model or
    vocabulary in a file is refused.
    """
    from suffixsvc_bench.demo.setup import model_file
    from suffixsvc_bench.recording.command import run_record
    from suffixsvc_bench.recording.run import RecordingOptions
    from suffixsvc_driver.machine import usable_cores

    from suffixsvc.cli.models import download

    options = RecordingOptions(
        tuple(workloads), out_dir, model_file(model, download), threads or usable_cores(), width, limit
    )
    run_record(options, as_json=as_json)
