"""``suffixsvc bench build``: cost of building caches, and hits of pruned caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from suffixsvc.verb_options import with_options
from suffixsvc_bench.build.options import BuildBenchOptions
from suffixsvc_cli.base.options import AsJson

_DEMO_LOG: Final = Path("tests/data/recorded_demo.jsonl.gz")


@with_options
def bench_build(options: BuildBenchOptions, as_json: AsJson = False) -> None:
    """Measure building caches: tokens per second, memory, export, pruning, and llama.cpp's own tool.

    Each measurement is a separate process. Token ids are synthetic and reproducible from --seed; they repeat
    phrases as agents do. Sections whose inputs are missing (a tokenizer, logs, programs) are skipped.
    """
    from suffixsvc_bench.build.run import run_build_bench
    from suffixsvc_bench.build.tables import build_grids
    from suffixsvc_bench.report.output import print_results, report_progress, require_folder

    require_folder(options.folder)
    if not options.logs and _DEMO_LOG.is_file():
        options = replace(options, logs=(_DEMO_LOG,))
    with report_progress() as report:
        results = run_build_bench(options, report)
    print_results(results, build_grids, as_json=as_json, seed=options.seed)
