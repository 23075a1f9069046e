"""``suffixsvc demo``: the whole system at work, on real models."""

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
            help="Use the small model (98 MB to download) without a draft model; not with --target or "
            "--draft.",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer questions, in less than 4 minutes.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write every call as a line of JSON to this file (.gz is compressed)."
        ),
    ] = None,
    report: Annotated[Path, typer.Option(metavar="FILE", help="HTML report.")] = Path("report.html"),
    target: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Target model: a GGUF or a name of `models list`.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Draft model with the same vocabulary.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the model. Default: one per physical core.")
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(min=1, max=6, help="Questions in each of the two passes. Default: 6, with --quick 2."),
    ] = None,
    context: Annotated[
        int,
        typer.Option(min=1024, metavar="TOKENS", help="Context size of a prompt and its answer together."),
    ] = 2048,
) -> None:
    """Run agents on a real model and show how stored outputs speed them up.

    Four agents answer questions about a shop database: one plans, one writes SQL (which is executed), one
    reports as JSON, one writes Python. The service stores their outputs and drafts from them, and the model
    verifies every draft. The demo prints each layer's share, the speed beside plain decoding, a crash of the
    service, and a check that the answers are the model's own. report.html shows the origin of each token.
    Downloads 1.6 GB the first time, 98 MB with --small.

    The exit code is 1 if a check failed on this machine. On few cores the second pass is often not faster
    than plain decoding, because verifying a drafted token costs almost as much as a plain step there.
    """
    # imported here so that --help is fast
    from suffixsvc_bench.demo.run import run_demo
    from suffixsvc_bench.demo.setup import DemoOptions
    from suffixsvc_cli.models.models import download

    options = DemoOptions(small, quick, record, report, target, draft, threads, questions, context)
    raise typer.Exit(run_demo(options, download))
