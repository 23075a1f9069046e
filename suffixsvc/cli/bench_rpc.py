"""``suffixsvc bench rpc``: what a step through the service costs, beside a bare gRPC echo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from suffixsvc_bench.rpc_bench import RpcOptions, RpcReport

__all__ = ["rpc"]


def rpc(
    transport: Annotated[list[str] | None, typer.Option(help="unix or tcp; both unless given.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="stream, direct (unix only) or unary; all unless given.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sessions in one message, for streams; 1, 8 and 64 unless given.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="hot (calls follow each other) or cold (a model computes before each); both."),
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each configuration.")] = 800,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds they are taken in: step, echo, engine, step ...")
    ] = 8,
    pause_ms: Annotated[float, typer.Option(min=0, help="CPU-bound pause before a cold call.")] = 4.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the texts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure a step through the service beside a bare gRPC echo of the same message sizes, in one run.

    Starts `suffixsvc serve` and the echo as processes of their own on this machine and alternates between
    them. "beyond" is what a step takes longer than the echo, "engine" what it takes without a service, both
    for each session in the message.
    """
    from suffixsvc_bench.rpc_bench import RpcOptions

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
    from suffixsvc_bench.output import Told
    from suffixsvc_bench.rpc_bench import run_rpc_bench
    from suffixsvc_bench.stopping import stop_on_signals

    with stop_on_signals(), Told() as told:
        return run_rpc_bench(options, told.share)


def _print(report: RpcReport) -> None:
    from rich.console import Console
    from suffixsvc_bench.rpc_bench.report import rpc_grid, rpc_line
    from suffixsvc_bench.tables import print_grid

    console = Console()
    found = report.as_dict()
    print_grid(console, rpc_grid(found))
    console.print(rpc_line(found), soft_wrap=True)
    console.print(report.provenance.line(), style="dim", highlight=False, soft_wrap=True)
