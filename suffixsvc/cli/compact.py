"""``suffixsvc compact``: seal and merge a data folder that no process has open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["compact"]


def compact(
    data: Annotated[Path, typer.Argument(help="A data folder; no process may have it open.")],
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Then read everything again and compare it with the log.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Put all outputs of a data folder into sealed segments, as few as possible.

    For caches built offline, which then open at once, and to have the bytes of forgotten outputs off the
    segment files now. A running service seals and merges by itself.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    from suffixsvc import SuffixCache
    from suffixsvc.cli.bars import progress_bars
    from suffixsvc.errors import InvalidConfigError

    if not (data / "data.mdb").is_file():
        raise InvalidConfigError(
            "there is no data folder", expected="a folder with a data.mdb", got=str(data)
        )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bars(*columns) as bars:
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
