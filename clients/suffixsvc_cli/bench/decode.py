"""``suffixsvc bench decode``: plain decoding against drafts on a real model, in pairs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from suffixsvc.verb_options import with_options
from suffixsvc_bench.decode.options import DecodeOptions

if TYPE_CHECKING:
    from suffixsvc_bench.decode.pricing.measured import Measured

#: table width where standard output is not a terminal
_WIDE = 200


@with_options
def bench_decode(options: DecodeOptions) -> None:
    """Compare decoding with drafts and plain decoding on a real model.

    Every call is answered plainly and by each variant, interleaved a few tokens at a time, so that changes of
    the machine's speed affect all of them (llama.cpp's programs run right before or after). Speedups are over
    plain decoding of the same calls, with a 95 % interval over calls; the forecast of a replay of the same
    calls is listed beside them. Run nothing else on the machine meanwhile.
    """
    from rich.console import Console

    from suffixsvc.runtime.atomic_file import write_atomically
    from suffixsvc.runtime.stop_signals import stop_on_signals
    from suffixsvc_bench.decode.command import run_decode
    from suffixsvc_bench.decode.tables import decode_parts
    from suffixsvc_bench.decode.variants.best import best_of, write_best
    from suffixsvc_bench.decode.variants.llama_server import MODES
    from suffixsvc_bench.decode.workload.jobs import WORKLOADS
    from suffixsvc_bench.report.output import report_progress, require_file_path
    from suffixsvc_bench.report.tables import Grid, print_grid

    for name in ("report", "prepared", "best"):
        require_file_path(getattr(options, name), f"--{name}")
    given = {"log": options.log, "files": options.files}
    options = replace(
        options,
        workloads=options.workloads or tuple(name for name in WORKLOADS if given.get(name, True)),
        llama_modes=options.llama_modes or tuple(MODES),
    )

    def save(measured: Measured) -> None:
        if options.report is not None:
            write_atomically(options.report, json.dumps(measured.as_dict(), indent=1) + "\n")

    with stop_on_signals(), report_progress() as report:
        measured = run_decode(options, report, save)
    fastest = best_of(measured.compared, measured.settings)
    if options.best is not None and fastest is not None:
        write_best(options.best, fastest, options.fixture(options.experts[0]))
    save(measured)
    data = measured.as_dict()
    if options.as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    for part in decode_parts(data):
        if isinstance(part, Grid):
            print_grid(console, part)
        else:
            console.print(part, markup=False, highlight=False)
    if fastest is not None:
        console.print(f"best: {fastest}", highlight=False)
    if options.best is not None:
        written = f"written to {options.best}" if fastest is not None else "no setting to write"
        console.print(written, highlight=False)
    console.print(measured.provenance.line(), style="dim", highlight=False, soft_wrap=True)
