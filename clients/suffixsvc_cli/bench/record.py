"""``suffixsvc bench record``: recording of a real model's answers to the workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench_record(
    workloads: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD...", help="Workloads: sql, json, code.")
    ],
    out_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder of the files WORKLOAD.jsonl, which are created or continued."
        ),
    ],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model: a GGUF or a name of `models list`.")
    ] = "qwen2.5-coder-1.5b",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the model. Default: one per physical core.")
    ] = None,
    width: Annotated[
        int,
        typer.Option(min=1, max=128, help="Concurrent answers; one step computes a token of each."),
    ] = 32,
    limit: Annotated[int, typer.Option(min=0, help="Number of tasks of each workload; 0 = all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Record a real model's answers to hundreds of tasks: SQL, JSON, Python code.

    The shipped caches are built from these logs. Each line is one call with its token ids, its task and its
    split: answers to held_out tasks evaluate a cache and must not go into it. The model answers greedily,
    many tasks in one batch.

    Workloads alternate, so that all of them are usable if the run is stopped. Ctrl-C or kill -9 loses only
    the answers in progress: the same command continues and skips recorded tasks. A file with answers of
    another model or vocabulary is refused.
    """
    from suffixsvc_bench.demo.setup import model_file
    from suffixsvc_bench.recording.command import run_record
    from suffixsvc_bench.recording.run import RecordingOptions
    from suffixsvc_cli.models.models import download
    from suffixsvc_driver.targets.llama.machine import usable_cores

    options = RecordingOptions(
        tuple(workloads), out_dir, model_file(model, download), threads or usable_cores(), width, limit
    )
    run_record(options, as_json=as_json)
