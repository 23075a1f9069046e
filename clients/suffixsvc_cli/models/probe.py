"""``suffixsvc probe MODEL``: cost of steps on this machine, and the possible speedup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from suffixsvc_cli.models.probe_show import QueryCosts

__all__ = ["probe"]

_CALLS_A_ROUND: Final = 60


def probe(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    ],
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads. Default: one per physical core.")
    ] = None,
    max_width: Annotated[
        int, typer.Option(min=2, max=512, help="Maximum width of a measured step, in tokens.")
    ] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each width.")] = 5,
    again: Annotated[bool, typer.Option("--again", help="Measure even if a curve is stored.")] = False,
    draft: Annotated[
        str, typer.Option(metavar="DRAFT", help="Draft model: compute the acceptance that it needs.")
    ] = "",
    rpc: Annotated[
        bool,
        typer.Option(
            "--rpc/--no-rpc",
            help="Start a temporary service and, with --draft, a draft worker, and measure the cost of "
            "queries to them.",
        ),
    ] = True,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write a plot of the curve and the speedups.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the possible speedup of speculative decoding on this machine.

    Verifying w tokens in one step costs less than w steps; how much less depends on the machine: little on
    two cores, nearly everything on a GPU. This verb measures the cost (a minute or two; run nothing else
    meanwhile), stores it for the driver under $SUFFIXSVC_HOME/cost, and prints the possible speedup by
    acceptance, and properties of the machine that slow it down. It also measures the cost of queries: to the
    cache in the same process, to the cache as a service over a unix socket, and to a draft model on a worker;
    and prints the step time from which the service pays.
    """
    import suffixsvc_models as models
    from suffixsvc_cli.base.bars import progress_bar
    from suffixsvc_cli.models.probe_show import Probe, write_plot
    from suffixsvc_driver.cost.speedup_estimate import speedup_estimates
    from suffixsvc_driver.profile.target_cost import measured_curve
    from suffixsvc_driver.targets.llama.context import ContextSettings
    from suffixsvc_driver.targets.llama.machine import inspect_machine, usable_cores
    from suffixsvc_driver.targets.single import LlamaTarget

    threads = threads or usable_cores()
    path, draft_path = models.resolve(model), models.resolve(draft) if draft else None
    settings = ContextSettings(context_size=1024, threads=threads, max_width=max_width)
    with LlamaTarget(path, settings) as target, progress_bar("measuring the cost of steps") as bar:
        curve = measured_curve(target, rounds=rounds, again=again, progress=bar).expected()
    queries = _measure_queries(draft_path, threads, rounds, rpc=rpc)
    draft_cost = None if queries.draft_seconds is None else queries.draft_seconds / curve.seconds_per_step
    found = Probe(
        path.name,
        threads,
        curve,
        draft_path.name if draft_path else "",
        draft_cost,
        tuple(speedup_estimates(curve, draft_cost=draft_cost)),
        tuple(inspect_machine(threads)),
        queries,
    )
    if plot is not None:
        write_plot(plot, found)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        found.show()


def _measure_queries(draft: Path | None, threads: int, rounds: int, *, rpc: bool) -> QueryCosts:
    """Measure queries; a process that does not start is reported and skipped, as the curve was measured
    already.
    """
    from suffixsvc.errors import ServiceError
    from suffixsvc_bench.report.stopping import stop_on_signals
    from suffixsvc_bench.rpc.query_cost import measure_cache_queries, measure_worker_queries
    from suffixsvc_cli.base.bars import progress_bar
    from suffixsvc_cli.models.probe_show import QueryCosts
    from suffixsvc_driver.profile.pair_cost import measured_seconds_per_token

    calls = _CALLS_A_ROUND * rounds
    cache = worker = seconds = None
    failures = []
    with stop_on_signals(), progress_bar("measuring the cost of queries") as bar:
        if rpc:
            try:
                cache = measure_cache_queries(rpc=True, calls=calls, progress=bar)
            except ServiceError as error:
                failures.append(str(error))
        cache = cache or measure_cache_queries(rpc=False, calls=calls, progress=bar)
        if draft is not None and rpc:
            try:
                worker = measure_worker_queries(draft, threads=threads)
                seconds = worker.seconds_per_token
            except ServiceError as error:
                failures.append(str(error))
    if draft is not None and seconds is None:
        seconds = measured_seconds_per_token(draft, threads)
    return QueryCosts(cache, worker, seconds, tuple(failures))
