"""``suffixsvc demo``: the whole thing at work, on real models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="Use the tiny model (98 MB to download), without a draft model; not with --target, --draft.",
        ),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer questions: under 4 minutes.")] = False,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write every call as a line of JSON (.gz to compress)."),
    ] = None,
    report: Annotated[Path, typer.Option(metavar="FILE", help="Where the page goes.")] = Path("report.html"),
    target: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Another target: a GGUF or a name of `models list`.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Another draft model, of the same vocabulary.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the model. Default: one a physical core.")
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(min=1, max=6, help="Questions in each of the two passes. Default: 6, quick: 2."),
    ] = None,
    context: Annotated[
        int, typer.Option(min=1024, metavar="TOKENS", help="What a prompt and its answer may take together.")
    ] = 2048,
) -> None:
    """Watch agents on a real model get faster by remembering, step by step.

    Four agents answer questions about a shop database: one plans, one writes SQL (which is really run), one
    reports as JSON, one writes Python. The service remembers what they write, drafts it when they begin to
    write it again, and the model checks every draft. You see each layer's share, the speed beside plain
    decoding, a crash of the service, and a proof that the answers are the model's own. report.html shows
    where each token came from. Downloads 1.6 GB the first time, 98 MB with --small.

    Exits 1 when something was not kept on this machine, and says what. On few cores it is normal that the
    second pass is not faster than plain decoding: checking a draft costs almost as much there as writing it.
    """
    # heavy parts load only when the verb runs, so that --help answers at once
    from suffixsvc_bench.demo.run import DemoOptions, run_demo

    from suffixsvc.cli.models import download

    options = DemoOptions(small, quick, record, report, target, draft, threads, questions, context)
    raise typer.Exit(run_demo(options, download))
