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
    from suffixsvc_bench.decode.pricing.measured import Measured

__all__ = ["bench_decode"]

#: table width where standard output is not a terminal
_WIDE = 200
Number = TypeVar("Number", int, float)


def bench_decode(
    target: Annotated[
        str, typer.Option(help="Target model: a GGUF, or a name of `suffixsvc models`.")
    ] = "qwen2.5-coder-1.5b",
    draft: Annotated[
        str, typer.Option(help="Draft model: a GGUF, or a name of `suffixsvc models`. Default: none.")
    ] = "",
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="Workload: sql, json, python, log, files, chat, edit or repeat. Repeatable. Default: all; "
            "log and files only with --log and --file."
        ),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Recorded log for the workload log.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Prompt for the workload files. Repeatable.")
    ] = None,
    calls: Annotated[int, typer.Option(min=1, help="Maximum number of calls of each workload.")] = 12,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each workload.")] = 2,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy: expected-gain, adaptive-k, content-k, class-k, fixed-k, or plain (against "
            "itself, which shows the resolution of the run). Repeatable. Default: expected-gain."
        ),
    ] = None,
    k: Annotated[str, typer.Option(help="Comma-separated values of K for fixed-k.")] = "4,8,16,24,32,48",
    layers: Annotated[
        list[str] | None,
        typer.Option(
            help="Layers for expected-gain: all, or kinds joined by + (prompt-lookup+suffix). Repeatable."
        ),
    ] = None,
    temperature: Annotated[str, typer.Option(help="Comma-separated temperatures.")] = "0",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads. Default: one per physical core.")
    ] = None,
    context: Annotated[int, typer.Option(min=256, help="Context size in tokens.")] = 2048,
    max_width: Annotated[int, typer.Option(min=2, help="Maximum width of a step, in tokens.")] = 32,
    max_tokens: Annotated[
        int, typer.Option(min=8, help="Maximum tokens of an answer of log and chat.")
    ] = 160,
    experts: Annotated[
        str, typer.Option(help="Comma-separated numbers of experts per token, for mixture-of-experts models.")
    ] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Measure the cost curve even if one is stored.")
    ] = False,
    prepared: Annotated[
        Path | None, typer.Option(help="File that stores the prepared answers for the next run.")
    ] = None,
    llama_bin: Annotated[
        Path | None, typer.Option(help="Folder with llama.cpp's own programs, to run in the same pairs.")
    ] = None,
    llama_mode: Annotated[
        list[str] | None, typer.Option(help="Mode of llama-server. Repeatable. Default: all.")
    ] = None,
    llama_programs: Annotated[
        bool, typer.Option("--llama-programs", help="Also run llama-lookup and llama-speculative.")
    ] = False,
    price_with: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.json",
            help="Speedup of the same drafts at other costs: a file, or gpu or 96-cores. These two are "
            "assumed, not measured; 96-cores is fitted to a reported speedup. Repeatable.",
        ),
    ] = None,
    best: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Write the best setting to this file, for generate and serve: the first one, unless "
            "another was faster by the 95 % interval over all calls of the first temperature.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write JSON with every pair to this file, updated after each workload."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare decoding with drafts and plain decoding on a real model.

    Every call is answered plainly and by each variant, interleaved a few tokens at a time, so that changes of
    the machine's speed affect all of them (llama.cpp's programs run right before or after). Speedups are over
    plain decoding of the same calls, with a 95 % interval over calls; the forecast of a replay of the same
    calls is listed beside them. Run nothing else on the machine meanwhile.
    """
    from rich.console import Console

    import suffixsvc_models as models
    from suffixsvc_bench.decode.command import run_decode
    from suffixsvc_bench.decode.options import DecodeOptions
    from suffixsvc_bench.decode.pricing.supplied_costs import read_supplied_costs, supplied_costs_heading
    from suffixsvc_bench.decode.tables import (
        against_grid,
        decode_grid,
        failure_sentences,
        forecast_grid,
        priced_grid,
    )
    from suffixsvc_bench.decode.variants.best import best_of, write_best
    from suffixsvc_bench.decode.variants.llama_server import MODES
    from suffixsvc_bench.decode.workload.jobs import WORKLOADS
    from suffixsvc_bench.report.output import ProgressReporter, require_file_path
    from suffixsvc_bench.report.stopping import stop_on_signals
    from suffixsvc_bench.report.tables import print_grid
    from suffixsvc_bench.speculation.model_fixture import FixtureOptions
    from suffixsvc_driver.targets.llama.machine import usable_cores

    require_file_path(report)
    require_file_path(prepared)
    require_file_path(best)
    options = DecodeOptions(
        FixtureOptions(
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
        [read_supplied_costs(name) for name in price_with or ()],
    )
    with stop_on_signals(), ProgressReporter() as progress:
        measured = run_decode(options, progress.update, lambda found: _save(found, report))
    data = measured.as_dict()
    fastest = best_of(measured.compared, measured.settings)
    if best is not None and fastest is not None:
        write_best(best, fastest, replace(options.fixture, experts=options.experts[0]))
    _save(measured, report)
    if as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    print_grid(console, decode_grid(data))
    for sentence in failure_sentences(data):
        console.print(sentence, markup=False, highlight=False)
    print_grid(console, forecast_grid(data))
    others = against_grid(data)
    if others is not None:
        console.print(f"{data['rows'][0]['variant']} over the other variants, on the same answers:")
        print_grid(console, others)
    for name, rows in data["priced"].items():
        about = data["prices"][name]
        console.print(f"{supplied_costs_heading(name, about)} ({about}):", markup=False)
        print_grid(console, priced_grid(rows))
    if fastest is not None:
        console.print(f"best: {fastest}", highlight=False)
    if best is not None:
        console.print(f"written to {best}" if fastest is not None else "no setting to write", highlight=False)
    console.print(measured.provenance.line(), style="dim", highlight=False, soft_wrap=True)


def _save(measured: Measured, report: Path | None) -> None:
    """Write the report atomically."""
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
            f"{option} must be a list of numbers", expected="e.g. 4,8,16", got=repr(text)
        ) from None
