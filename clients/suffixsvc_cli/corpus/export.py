"""``suffixsvc export``: lookup caches from a namespace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from suffixsvc.verb_options import with_options
from suffixsvc_cli.base.options import AsJson, Data, Server, require_one_store
from suffixsvc_cli.corpus.build import PruningOptions


@with_options
def export(
    namespace: Annotated[str, typer.Argument(help="Path of the namespace.")],
    pruning: PruningOptions,
    server: Server = None,
    data: Data = None,
    lookup_static: Annotated[
        Path | None, typer.Option(help="Write a file of 2-grams for llama.cpp's --lookup-cache-static.")
    ] = None,
    lookup_dynamic: Annotated[
        Path | None, typer.Option(help="Write a file of 1- to 4-grams for its --lookup-cache-dynamic.")
    ] = None,
    context: Annotated[
        int, typer.Option(min=0, max=64, help="Number of prompt tokens in which n-grams may begin.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a namespace as lookup caches for llama.cpp.

    All stored outputs of the namespace are counted, by the service itself if one runs: only n-grams are
    transferred. Outputs of open sessions are not included. Temporary files go to TMPDIR, also those of the
    service.

        suffixsvc export acme/sql --server unix:./suffixsvc.sock --lookup-static sql.bin
    """
    from suffixsvc.errors import InvalidConfigError
    from suffixsvc_caches.exporting import export_lookup
    from suffixsvc_cli.corpus.build_show import caches_table, plain_file, warn_of_empty

    require_one_store(server, data)
    if not (lookup_static or lookup_dynamic):
        raise InvalidConfigError("--lookup-static or --lookup-dynamic must be given")
    static, dynamic = pruning.lookup(lookup_static), pruning.lookup(lookup_dynamic)
    done = export_lookup(
        namespace, data or server or "", static, dynamic, context_tokens=context, force=force
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
