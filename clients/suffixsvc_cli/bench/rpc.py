"""``suffixsvc bench rpc``: a step through the service beside a bare gRPC echo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from suffixsvc_bench.rpc import RpcOptions, RpcReport

__all__ = ["rpc"]


def rpc(
    transport: Annotated[
        list[str] | None, typer.Option(help="Transport: unix or tcp. Repeatable. Default: both.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Kind of call: stream, direct (unix only) or unary. Repeatable. Default: all."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Sessions in one message of a stream. Repeatable. Default: 1, 8 and 64."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            help="Mode: hot (back-to-back calls) or cold (a CPU-bound pause before each). Repeatable. "
            "Default: both."
        ),
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each configuration.")] = 800,
    rounds: Annotated[
        int,
        typer.Option(min=1, help="Alternating rounds (step, echo, engine) that the calls are divided into."),
    ] = 8,
    pause_ms: Annotated[
        float, typer.Option(min=0, help="CPU-bound pause before a cold call, in milliseconds.")
    ] = 4.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a step through the service beside a bare gRPC echo of the same message sizes, in one run.

    Starts `suffixsvc serve` and the echo as separate processes on this machine and alternates between them.
    "beyond" is the time of a step beyond the echo, "engine" the time of a step without a service, both per
    session in the message.
    """
    from suffixsvc_bench.rpc import RpcOptions

    default = RpcOptions()
    report = _run(
        RpcOptions(
            transports=tuple(transport or default.transports),
            kinds=tuple(kind or default.kinds),
            batches=tuple(batch or default.batches),
            modes=tuple(mode or default.modes),
            calls=calls,
            rounds=min(rounds, calls),
            pause_ms=pause_ms,
            seed=seed,
        )
    )
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
        return
    _print(report)


def _run(options: RpcOptions) -> RpcReport:
    from suffixsvc_bench.report.output import ProgressReporter
    from suffixsvc_bench.report.stopping import stop_on_signals
    from suffixsvc_bench.rpc import run_rpc_bench

    with stop_on_signals(), ProgressReporter() as progress:
        return run_rpc_bench(options, progress.update)


def _print(report: RpcReport) -> None:
    from rich.console import Console

    from suffixsvc_bench.report.tables import print_grid
    from suffixsvc_bench.rpc.report import rpc_grid, rpc_line

    console = Console()
    found = report.as_dict()
    print_grid(console, rpc_grid(found))
    console.print(rpc_line(found), soft_wrap=True)
    console.print(report.provenance.line(), style="dim", highlight=False, soft_wrap=True)
