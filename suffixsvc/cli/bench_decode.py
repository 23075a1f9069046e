"""``suffixsvc bench decode``: plain decoding against drafts on a real model, in pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from suffixsvc_bench.decode.measured import Measured

__all__ = ["bench_decode"]

#: columns of a table that goes into a file
_WIDE = 200
Number = TypeVar("Number", int, float)


def bench_decode(
    target: Annotated[
        str, typer.Option(help="The model that writes: a GGUF, or a name of `suffixsvc models`.")
    ] = "qwen2.5-coder-1.5b",
    draft: Annotated[str, typer.Option(help="A model that drafts: likewise. Default: none.")] = "",
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="sql, json, python, log, files, chat, edit, repeat; several times. Default: all, log and "
            "files where they are given."
        ),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="For the workload log: a recorded log.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="For the workload files: a prompt; several times.")
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Of each workload at most.")] = 12,
    rounds: Annotated[int, typer.Option(min=1, help="How often each call is answered in each way.")] = 2,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="expected-gain, adaptive-k, content-k, class-k, fixed-k, or plain (against itself: what "
            "the run can resolve); several times. Default: expected-gain."
        ),
    ] = None,
    k: Annotated[str, typer.Option(help="For fixed-k: the K to compare, by commas.")] = "4,8,16,24,32,48",
    layers: Annotated[
        list[str] | None,
        typer.Option(
            help="For expected-gain: all, or kinds joined by +: prompt-lookup+suffix; several times."
        ),
    ] = None,
    temperature: Annotated[str, typer.Option(help="Temperatures to compare, by commas.")] = "0",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Default: as many as there are physical cores.")
    ] = None,
    context: Annotated[int, typer.Option(min=256, help="Tokens of the context.")] = 2048,
    max_width: Annotated[int, typer.Option(min=2, help="The widest step, in tokens.")] = 32,
    max_tokens: Annotated[int, typer.Option(min=8, help="Of an answer of log and chat.")] = 160,
    experts: Annotated[
        str, typer.Option(help="Of a mixture of experts: how many a token goes through, by commas.")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure the cost curve anew.")] = False,
    prepared: Annotated[
        Path | None, typer.Option(help="Keep here what has to be written first; the next run reads it.")
    ] = None,
    llama_bin: Annotated[
        Path | None, typer.Option(help="Run llama.cpp's own programs of this folder in the same pairs.")
    ] = None,
    llama_mode: Annotated[
        list[str] | None, typer.Option(help="Of llama-server; several times. Default: all it can here.")
    ] = None,
    llama_programs: Annotated[
        bool, typer.Option("--llama-programs", help="llama-lookup and llama-speculative too.")
    ] = False,
    price_with: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.json",
            help="What the same drafts would bring at these prices: a file, or gpu, 96-cores, which are "
            "assumed, not measured, the latter fitted to a reported speedup.",
        ),
    ] = None,
    best: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Write the best setting here, for generate and serve: the first one, unless another was "
            "faster by the interval over all calls of the first temperature.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write JSON with every pair to this file, after each workload.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Decode with drafts and without, side by side, on a real model.

    Every call is answered plainly and in each way that is compared, a few tokens of each in turn, so that a
    machine that slows down slows all of them (llama.cpp's programs right before or after). Speedups are over
    plain decoding of the same calls, with a 95 % interval over calls; what the replay of the same calls
    forecasts stands beside. Run nothing else then.
    """
    from rich.console import Console
    from suffixsvc_bench.decode.best import best_of, write_best
    from suffixsvc_bench.decode.command import run_decode
    from suffixsvc_bench.decode.jobs import WORKLOADS
    from suffixsvc_bench.decode.llama_server import MODES
    from suffixsvc_bench.decode.options import DecodeOptions
    from suffixsvc_bench.decode.priced import priced_heading, read_prices
    from suffixsvc_bench.decode.rig import RigOptions
    from suffixsvc_bench.decode.tables import (
        against_grid,
        decode_grid,
        forecast_grid,
        left_out,
        priced_grid,
    )
    from suffixsvc_bench.output import Told, require_place
    from suffixsvc_bench.stopping import stop_on_signals
    from suffixsvc_bench.tables import print_grid
    from suffixsvc_driver import models
    from suffixsvc_driver.machine import usable_cores

    require_place(report)
    require_place(prepared)
    require_place(best)
    options = DecodeOptions(
        RigOptions(
            models.resolve(target),
            models.resolve(draft) if draft else None,
            threads or usable_cores(),
            context,
            max_width,
            again=again,
        ),
        workload or [name for name in WORKLOADS if {"log": log, "files": file}.get(name, True)],
        calls,
        rounds,
        policy or ["expected-gain"],
        _numbers(k, int, "--k"),
        layers or ["all"],
        _numbers(temperature, float, "--temperature"),
        max_tokens,
        _numbers(experts, int, "--experts") if experts else [None],
        log,
        file or [],
        prepared,
        llama_bin,
        llama_mode or list(MODES),
        llama_programs,
        [read_prices(name) for name in price_with or ()],
    )
    with stop_on_signals(), Told() as told:
        measured = run_decode(options, told.share, lambda found: _keep(found, report))
    data = measured.as_dict()
    winner = best_of(measured.compared, measured.settings)
    if best is not None and winner is not None:
        write_best(best, winner, replace(options.rig, experts=options.experts[0]))
    _keep(measured, report)
    if as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    print_grid(console, decode_grid(data))
    for sentence in left_out(data):
        console.print(sentence, markup=False, highlight=False)
    print_grid(console, forecast_grid(data))
    others = against_grid(data)
    if others is not None:
        console.print(f"{data['rows'][0]['variant']} over the other ways, from the same answers:")
        print_grid(console, others)
    for name, rows in data["priced"].items():
        about = data["prices"][name]
        console.print(f"{priced_heading(name, about)} ({about}):", markup=False)
        print_grid(console, priced_grid(rows))
    if winner is not None:
        console.print(f"best: {winner}", highlight=False)
    if best is not None:
        console.print(f"written to {best}" if winner is not None else "nothing to write", highlight=False)
    console.print(measured.provenance.line(), style="dim", highlight=False, soft_wrap=True)


def _keep(measured: Measured, report: Path | None) -> None:
    """The file is always whole."""
    if report is None:
        return
    draft = report.with_name(f".{report.name}.new")
    draft.write_text(json.dumps(measured.as_dict(), indent=1) + "\n", encoding="utf-8")
    draft.replace(report)


def _numbers(text: str, kind: Callable[[str], Number], option: str) -> list[Number]:
    from suffixsvc.errors import InvalidInputError

    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidInputError(
            f"{option} is no list of numbers", expected="4,8,16", got=repr(text)
        ) from None
