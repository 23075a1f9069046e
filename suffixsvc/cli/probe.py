"""``suffixsvc probe MODEL``: what a step costs here, and what speedup is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from suffixsvc.cli.probe_show import Asked

__all__ = ["probe"]

_CALLS_A_ROUND: Final = 60


def probe(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    ],
    threads: Annotated[
        int | None, typer.Option(min=1, help="To compute on. Default: as many as there are physical cores.")
    ] = None,
    max_width: Annotated[
        int, typer.Option(min=2, max=512, help="The widest step that is measured, in tokens.")
    ] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each width is measured.")] = 5,
    again: Annotated[bool, typer.Option("--again", help="Measure even where a curve is kept.")] = False,
    draft: Annotated[
        str, typer.Option(metavar="DRAFT", help="A draft model: what would it have to reach?")
    ] = "",
    rpc: Annotated[
        bool,
        typer.Option(
            "--rpc/--no-rpc",
            help="Start a service and, with --draft, a draft worker for a moment, and measure what asking "
            "them costs.",
        ),
    ] = True,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Write a picture of curve and speedups.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what speculation can bring on this machine, before anybody switches it on.

    Verifying w tokens in one step costs less than w steps, but how much less is the machine's affair: on two
    cores hardly at all, on a GPU nearly everything. This measures it (run nothing beside it; a minute or
    two), keeps it for the driver under $SUFFIXSVC_HOME/cost, and tells which speedup is possible for which
    acceptance, and what of the machine slows it down. It also measures what asking for drafts costs: the
    cache in the same process, the cache as a service over a unix socket, a draft model on a worker; and
    says from which step time the service pays.
    """
    from suffixsvc_driver import models
    from suffixsvc_driver.cost import live_curve
    from suffixsvc_driver.machine import look_at_machine, usable_cores
    from suffixsvc_driver.prospects import prospects
    from suffixsvc_driver.targets.llama import LlamaTarget
    from suffixsvc_driver.targets.llama_context import ContextSettings

    from suffixsvc.cli.bars import progress_bar
    from suffixsvc.cli.probe_show import Probe, write_plot

    threads = threads or usable_cores()
    path, draft_path = models.resolve(model), models.resolve(draft) if draft else None
    settings = ContextSettings(context_size=1024, threads=threads, max_width=max_width)
    with LlamaTarget(path, settings) as target, progress_bar("measuring what a step costs") as bar:
        curve = live_curve(target, rounds=rounds, again=again, progress=bar).expected()
    asked = _ask(draft_path, threads, rounds, rpc=rpc)
    draft_cost = None if asked.draft_seconds is None else asked.draft_seconds / curve.seconds_per_step
    found = Probe(
        path.name,
        threads,
        curve,
        draft_path.name if draft_path else "",
        draft_cost,
        tuple(prospects(curve, draft_cost=draft_cost)),
        tuple(look_at_machine(threads)),
        asked,
    )
    if plot is not None:
        write_plot(plot, found)
    if as_json:
        typer.echo(json.dumps(found.as_plain(), indent=2))
    else:
        found.show()


def _ask(draft: Path | None, threads: int, rounds: int, *, rpc: bool) -> Asked:
    """Whatever of it does not start is said, and left out: the curve was measured already."""
    from suffixsvc_bench.rpc_bench.asking import measure_asking, measure_worker
    from suffixsvc_bench.stopping import stop_on_signals
    from suffixsvc_driver.pair_cost import measured_seconds_per_token

    from suffixsvc.cli.bars import progress_bar
    from suffixsvc.cli.probe_show import Asked
    from suffixsvc.errors import ServiceError

    calls = _CALLS_A_ROUND * rounds
    cache = worker = seconds = None
    failures = []
    with stop_on_signals(), progress_bar("measuring what asking costs") as bar:
        if rpc:
            try:
                cache = measure_asking(rpc=True, calls=calls, progress=bar)
            except ServiceError as error:
                failures.append(str(error))
        cache = cache or measure_asking(rpc=False, calls=calls, progress=bar)
        if draft is not None and rpc:
            try:
                worker = measure_worker(draft, threads=threads)
                seconds = worker.seconds_per_token
            except ServiceError as error:
                failures.append(str(error))
    if draft is not None and seconds is None:
        seconds = measured_seconds_per_token(draft, threads)
    return Asked(cache, worker, seconds, tuple(failures))
