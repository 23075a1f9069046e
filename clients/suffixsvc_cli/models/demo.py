"""``suffixsvc demo``: the whole system at work, on real models."""

from __future__ import annotations

import typer

from suffixsvc.verb_options import with_options
from suffixsvc_bench.demo.options import DemoOptions


@with_options
def demo(options: DemoOptions) -> None:
    """Run agents on a real model and show how stored outputs speed them up.

    Four agents answer questions about a shop database: one plans, one writes SQL (which is executed), one
    reports as JSON, one writes Python. The service stores their outputs and drafts from them, and the model
    verifies every draft. The demo prints each layer's share, the speed beside plain decoding, a crash of the
    service, two processes that draft from each other's unfinished text, and a check that the answers are the
    model's own. report.html shows the origin of each token.
    Downloads 1.6 GB the first time, 98 MB with --small.

    The exit code is 1 if a check failed on this machine. On few cores the second pass is often not faster
    than plain decoding, because verifying a drafted token costs almost as much as a plain step there.
    """
    # imported here so that --help is fast
    from suffixsvc_bench.demo.run import run_demo
    from suffixsvc_cli.models.models import download

    raise typer.Exit(run_demo(options, download))
