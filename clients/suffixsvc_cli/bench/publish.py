"""``suffixsvc bench publish``: the performance page, from the results of the other verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench_publish(
    measured: Annotated[
        Path,
        typer.Argument(
            help="Folder with the JSON of runs: replay.json, index.json, segment.json, rpc.json, build.json, "
            "decode.json, http.json. Sections without a file are omitted."
        ),
    ],
    page: Annotated[
        Path, typer.Option(help="Page to write; its plots go into a folder of the same name.")
    ] = Path("docs/performance.md"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the page's sections that have no JSON here.")
    ] = False,
) -> None:
    """Write docs/performance.md and its plots from the JSON of the benchmarks.

    tools/performance.sh runs the benchmarks and then this verb.
    """
    from suffixsvc_bench.page.publish import publish

    for path in publish(measured, page, keep=keep):
        typer.echo(path)
