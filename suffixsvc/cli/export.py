"""``suffixsvc export``: lookup caches from a namespace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    namespace: Annotated[str, typer.Argument(help="Path of the namespace.")],
    server: Annotated[
        str | None, typer.Option(help="Address of a running service: unix:PATH or HOST:PORT.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Or a data folder that no process has open.")] = None,
    lookup_static: Annotated[
        Path | None, typer.Option(help="Write a file for llama.cpp's --lookup-cache-static: 2-grams.")
    ] = None,
    lookup_dynamic: Annotated[
        Path | None, typer.Option(help="Write a file for its --lookup-cache-dynamic: 1- to 4-grams.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="The most a file may take: 1M. See suffixsvc build --help.")
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Leave out what changes no draft.")] = False,
    min_count: Annotated[int, typer.Option(help="Leave out what followed less often.")] = 1,
    top: Annotated[int, typer.Option(help="Followers of an n-gram at most; 0 = all.")] = 0,
    exact_counts: Annotated[bool, typer.Option("--exact-counts", help="Counts as counted.")] = False,
    context: Annotated[
        int, typer.Option(min=0, max=64, help="Let n-grams begin in so many tokens of the prompts.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Write what a namespace keeps as lookup caches that llama.cpp loads.

    Everything that the namespace keeps is counted, by the service itself where one runs: only n-grams travel.
    What sessions that are still open have written is not kept yet. Temporary files go where TMPDIR
    says, those of the service as well.

        suffixsvc export acme/sql --server unix:./suffixsvc.sock --lookup-static sql.bin
    """
    from suffixsvc_caches.building import LookupSpec
    from suffixsvc_caches.exporting import ExportSource, export_lookup
    from suffixsvc_caches.sizes import parse_size

    from suffixsvc.cli.build_show import caches_table, plain_file, warn_of_empty
    from suffixsvc.errors import InvalidConfigError

    if (server is None) == (data is None):
        raise InvalidConfigError(
            "a namespace is in one place", expected="--server or --data", got="both or none"
        )
    if not (lookup_static or lookup_dynamic):
        raise InvalidConfigError(
            "there is nothing to write", expected="--lookup-static or --lookup-dynamic", got="none"
        )
    limit = None if budget is None else parse_size(budget, "--budget")

    def lookup(path: Path | None) -> LookupSpec | None:
        return LookupSpec(path, limit, compact, min_count, top, exact_counts) if path else None

    static, dynamic = lookup(lookup_static), lookup(lookup_dynamic)
    done = export_lookup(
        ExportSource(namespace, data, server or ""),
        static,
        dynamic,
        context_tokens=context,
        force=force,
    )
    if as_json:
        plain = {
            "namespace": namespace,
            "tokenizer": done.tokenizer,
            "outputs": done.outputs,
            "tokens": done.tokens,
            "static": plain_file(done.files.static),
            "dynamic": plain_file(done.files.dynamic),
        }
        typer.echo(json.dumps(plain, indent=2))
        return
    from rich.console import Console

    console = Console()
    console.print(f"{done.outputs:,} outputs, {done.tokens:,} tokens, tokenizer {done.tokenizer or '?'}")
    console.print(caches_table(done.files))
    warn_of_empty(done.files, static or dynamic)
