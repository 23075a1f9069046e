"""``suffixsvc bench replay``: drafting methods side by side on recorded logs."""

from __future__ import annotations

from typing import Annotated

import typer

from suffixsvc.verb_options import with_options
from suffixsvc_bench.replay.options import ReplayRequest


@with_options
def bench_replay(
    request: ReplayRequest,
    listed: Annotated[bool, typer.Option("--methods", help="List the methods and exit.")] = False,
) -> None:
    """Compare drafting methods on recorded logs, without running a model.

    Every call is replayed: each step drafts, accepts what agrees with the recorded answer and continues after
    it. Each log is a trace and starts with empty caches.

    The priced speedup is the number of tokens divided by the cost of the steps, 1 + cost x drafted tokens
    each. Our methods draft for the cost at which they are scored; the others have fixed configurations. MAT
    is tokens per step of the target (1 = no gain). docs/benchmarks.md explains every column.
    """
    from suffixsvc_bench.replay.command import list_methods, run_bench_replay

    if listed:
        list_methods()
    else:
        run_bench_replay(request)
