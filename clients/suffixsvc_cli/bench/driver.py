"""``suffixsvc bench driver``: the driver's own time per step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson


def bench_driver(
    log: Annotated[Path, typer.Argument(help="Recorded log with token ids, from bench record.")],
    calls: Annotated[int, typer.Option(min=1, help="Maximum number of calls.")] = 40,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions; each step has its fastest time.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure the driver's own time per step, without the target.

    Recorded answers are emitted again by a target that computes nothing; the embedded engine, the layers and
    the decisions are real. Cold steps begin after other memory was read, as after a step of a real model.
    """
    from suffixsvc_bench.driver.run import driver_grids, run_driver_bench
    from suffixsvc_bench.report.output import print_results, report_progress

    with report_progress() as report:
        results = run_driver_bench(log, calls, repetitions, report)
    print_results(results, driver_grids, as_json=as_json)
