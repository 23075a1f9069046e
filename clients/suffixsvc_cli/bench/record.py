"""``suffixsvc bench record``: recording of a real model's answers to the workloads."""

from __future__ import annotations

from dataclasses import replace

from suffixsvc.verb_options import with_options
from suffixsvc_bench.recording.options import RecordingOptions


@with_options
def bench_record(options: RecordingOptions) -> None:
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
    from suffixsvc_cli.models.models import download
    from suffixsvc_driver.targets.llama.machine import usable_cores

    model = model_file(options.model, download)
    run_record(replace(options, model=str(model), threads=options.threads or usable_cores()))
