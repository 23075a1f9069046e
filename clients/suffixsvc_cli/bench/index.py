"""``suffixsvc bench index``: the in-memory index under load."""

from __future__ import annotations

from suffixsvc.verb_options import with_options
from suffixsvc_bench.index.options import IndexBenchOptions
from suffixsvc_cli.base.options import AsJson


@with_options
def bench_index(options: IndexBenchOptions, as_json: AsJson = False) -> None:
    """Measure ingest, memory, step latency, removal, opening and restart of the index by its size.

    The peer, if installed, does the same work in the same run, alternating in blocks of 100 outputs (up to
    10M tokens). Texts are synthetic and reproducible from --seed; "realistic" repeats phrases as agents do.
    """
    from suffixsvc_bench.index.report import write_index_report
    from suffixsvc_bench.index.run import run_index_bench
    from suffixsvc_bench.index.tables import index_parts
    from suffixsvc_bench.report.output import print_results, report_progress

    with report_progress() as report:
        results = run_index_bench(options, report)
    print_results(results, index_parts, as_json=as_json, seed=options.seed)
    if options.report is not None:
        write_index_report(options.report, results)
