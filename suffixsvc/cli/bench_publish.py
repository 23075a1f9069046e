"""``suffixsvc bench publish``: the page about performance, from what the other verbs measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench_publish"]


def bench_publish(
    measured: Annotated[
        Path,
        typer.Argument(
            help="A folder with the JSON of runs: replay.json, index.json, segment.json, rpc.json, "
            "build.json, decode.json; what is missing is left out of the page."
        ),
    ],
    page: Annotated[Path, typer.Option(help="The page to write; its plots go beside it.")] = Path(
        "docs/performance.md"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave sections without JSON as the page has them.")
    ] = False,
) -> None:
    """Write docs/performance.md and its plots from the JSON of the benchmarks, so that nobody copies numbers.

    tools/performance.sh runs the benchmarks and then this.
    """
    from suffixsvc_bench.page import publish

    for path in publish(measured, page, keep=keep):
        typer.echo(path)
