"""``suffixsvc compact``: sealing and merging of a data folder that no process has open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc_cli.base.options import AsJson


def compact(
    data: Annotated[Path, typer.Argument(help="Data folder that no process has open.")],
    namespace: Annotated[str | None, typer.Option(help="Compact only this namespace.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Verify all segments against the log afterwards.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move all outputs of a data folder into sealed segments, as few as possible.

    For caches built offline, which open faster afterwards, and to remove forgotten outputs from segment
    files. A running service seals and merges in the background.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

    from suffixsvc import SuffixCache
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc_cli.base.bars import progress_bars

    if not (data / "data.mdb").is_file():
        raise InvalidConfigError("DATA must be a folder with a data.mdb", got=str(data))
    with progress_bars(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bars:
        bar = bars.add_task("opening", total=None)

        def show(title: str, done: int, total: int) -> None:
            bars.update(bar, description=title, completed=done, total=total)

        with SuffixCache(data, background=False, progress=lambda *at: show("outputs", *at)) as cache:
            cache.compact(namespace, progress=lambda *at: show("namespaces", *at))
            if check:
                bars.update(bar, description="checking", total=None)
                cache.check()
            stats = cache.stats() if namespace is None else cache.namespace(namespace).stats()
    if as_json:
        names = ("outputs", "tokens", "hot_tokens", "segments", "segment_bytes")
        typer.echo(json.dumps({name: getattr(stats, name) for name in names}))
        return
    size = stats.segment_bytes / 2**20
    typer.echo(
        f"{stats.outputs} outputs, {stats.tokens} tokens in {stats.segments} segments of {size:.1f} MiB"
        + (" (checked)" if check else "")
    )
