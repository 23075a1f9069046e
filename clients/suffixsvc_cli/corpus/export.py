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
    data: Annotated[
        Path | None, typer.Option(help="Alternatively: a data folder that no process has open.")
    ] = None,
    lookup_static: Annotated[
        Path | None, typer.Option(help="Write a file of 2-grams for llama.cpp's --lookup-cache-static.")
    ] = None,
    lookup_dynamic: Annotated[
        Path | None, typer.Option(help="Write a file of 1- to 4-grams for its --lookup-cache-dynamic.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Maximum size of a file, e.g. 1M. See suffixsvc build --help.")
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Remove records that change no draft.")] = False,
    min_count: Annotated[int, typer.Option(help="Minimum count of a follower.")] = 1,
    top: Annotated[int, typer.Option(help="Maximum followers of an n-gram; 0 = all.")] = 0,
    exact_counts: Annotated[bool, typer.Option("--exact-counts", help="Write exact counts.")] = False,
    context: Annotated[
        int, typer.Option(min=0, max=64, help="Number of prompt tokens in which n-grams may begin.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export a namespace as lookup caches for llama.cpp.

    All stored outputs of the namespace are counted, by the service itself if one runs: only n-grams are
    transferred. Outputs of open sessions are not included. Temporary files go to TMPDIR, also those of the
    service.

        suffixsvc export acme/sql --server unix:./suffixsvc.sock --lookup-static sql.bin
    """
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc_caches.building import LookupSpec
    from suffixsvc_caches.exporting import ExportSource, export_lookup
    from suffixsvc_caches.sizes import parse_size
    from suffixsvc_cli.corpus.build_show import caches_table, plain_file, warn_of_empty

    if (server is None) == (data is None):
        raise InvalidConfigError(
            "one of --server and --data must be given", got="both" if server is not None else "none"
        )
    if not (lookup_static or lookup_dynamic):
        raise InvalidConfigError("--lookup-static or --lookup-dynamic must be given")
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
