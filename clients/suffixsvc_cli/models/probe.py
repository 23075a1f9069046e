"""``suffixsvc probe MODEL``: cost of steps on this machine, and the possible speedup."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from suffixsvc.verb_options import argument, option, with_options
from suffixsvc_cli.base.options import AsJson
from suffixsvc_models.load_options import LoadOptions

if TYPE_CHECKING:
    from suffixsvc_driver.targets.llama.offload import Offload

_CALLS_A_ROUND: Final = 60


@dataclass(frozen=True, slots=True)
class ProbeOptions(LoadOptions):
    """The command line."""

    model: str = argument(metavar="MODEL", help="A GGUF file, or the name of a downloaded model.")
    threads: int | None = option(None, min=1, help="Threads. Default: one per physical core.")
    flash_attention: bool | None = option(
        None,
        "--flash-attention/--no-flash-attention",
        help="Use flash attention, as suffixsvc openai does on a CPU.",
        show_default="found by a trial",
    )
    max_width: int = option(64, min=2, max=512, help="Maximum width of a measured step, in tokens.")
    rounds: int = option(5, min=1, help="Measurements of each width.")
    again: bool = option(False, "--again", help="Measure even if a curve is stored.")
    draft: str = option("", metavar="DRAFT", help="Draft model: compute the acceptance that it needs.")
    rpc: bool = option(
        True,
        "--rpc/--no-rpc",
        help="Start a temporary service and, with --draft, a draft worker, and measure the cost of queries "
        "to them.",
    )
    plot: Path | None = option(None, metavar="FILE.svg", help="Write a plot of the curve and the speedups.")


@with_options
def probe(options: ProbeOptions, as_json: AsJson = False) -> None:
    """Measure the possible speedup of speculative decoding on this machine.

    Verifying w tokens in one step costs less than w steps; how much less depends on the machine: little on
    two cores, nearly everything on a GPU. This verb measures the cost (a minute or two; run nothing else
    meanwhile), stores it for the driver under $SUFFIXSVC_HOME/cost, and prints the possible speedup by
    acceptance, and properties of the machine that slow it down. It also measures the cost of queries: to the
    cache in the same process, to a follower of a service, to that service over gRPC and a unix socket, and to
    a draft model on a worker; and prints the step time from which a service pays.
    """
    import suffixsvc_models as models
    from suffixsvc_cli.base.bars import progress_bar
    from suffixsvc_cli.models.probe_show import print_results, probe_results, write_plot
    from suffixsvc_driver.profile.target_cost import measured_curve
    from suffixsvc_driver.targets.llama.context_settings import ContextSettings
    from suffixsvc_driver.targets.llama.machine import usable_cores
    from suffixsvc_driver.targets.llama.model import LlamaModel
    from suffixsvc_driver.targets.llama.offload import Offload
    from suffixsvc_driver.targets.single import LlamaTarget

    offload = Offload.of(options)
    threads = options.threads or usable_cores()
    path = models.resolve(options.model)
    draft = models.resolve(options.draft) if options.draft else None
    settings = ContextSettings(
        context_size=1024,
        threads=threads,
        max_width=options.max_width,
        kv_type=options.kv_type_or_default,
        flash_attention=options.flash_attention,
    )
    with (
        LlamaModel(path, offload=offload) as model,
        LlamaTarget(model, settings) as target,
        progress_bar("measuring the cost of steps") as bar,
    ):
        measured = measured_curve(target, rounds=options.rounds, again=options.again, progress=bar)
        device = model.device
    curve = measured.expected()
    asking, token_seconds = _measure_queries(draft, threads, options.rounds, offload, rpc=options.rpc)
    name = draft.name if draft else None
    found = probe_results(path.name, threads, curve, name, token_seconds, asking, device=device)
    if options.plot is not None:
        write_plot(options.plot, found, curve)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        print_results(found, curve)


def _measure_queries(
    draft: Path | None, threads: int, rounds: int, offload: Offload, *, rpc: bool
) -> tuple[dict[str, Any], float | None]:
    """Costs of queries, and seconds of a token of the draft model.

    A process that does not start is reported and skipped, as the curve was measured already.
    """
    from suffixsvc.errors import ServiceError
    from suffixsvc.runtime.stop_signals import stop_on_signals
    from suffixsvc_bench.rpc.query_cost import measure_cache_queries, measure_worker_queries
    from suffixsvc_cli.base.bars import progress_bar
    from suffixsvc_driver.profile.pair_cost import measured_seconds_per_token

    calls = _CALLS_A_ROUND * rounds
    cache = worker = None
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
                worker = measure_worker_queries(draft, threads=threads, options=offload.arguments())
            except ServiceError as error:
                failures.append(str(error))
    seconds = worker["seconds_per_token"] if worker else None
    if draft is not None and seconds is None:
        seconds = measured_seconds_per_token(draft, threads, offload)
    return cache | {"draft_worker": worker, "failures": failures}, seconds
