"""``suffixsvc namespaces``: list and delete the namespaces of a service or a data folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffixsvc_cli.base.counts import counted
from suffixsvc_cli.base.groups import verb_group
from suffixsvc_cli.base.options import AsJson, Data, Server
from suffixsvc_cli.server.backend import opened_backend
from suffixsvc_cli.server.forget import print_silent

if TYPE_CHECKING:
    from suffixsvc import SuffixCache
    from suffixsvc.types import NamespaceRecord
    from suffixsvc_client import SuffixClient


def list_(
    prefix: Annotated[str, typer.Argument(help="Path whose subtree is listed.")] = "",
    server: Server = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List namespaces: path, tokenizer fingerprint, outputs, tokens, and bytes.

    The bytes are those that count for limits, in log and index (docs/statistics.md).
    """
    with opened_backend(server, data) as backend:
        wanted = [
            record
            for record in backend.namespaces()
            if not prefix or record.path == prefix or record.path.startswith(prefix + "/")
        ]
        found = [each for each in (_described(backend, record) for record in wanted) if each]
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        none = f"no namespace {prefix!r}, and none below it" if prefix else "no namespaces"
        typer.echo(none, err=True)
    for each in found:
        counts = f"{each['outputs']:,} outputs\t{each['tokens']:,} tokens\t{each['bytes']:,} bytes"
        typer.echo(f"{each['path']}\t{each['tokenizer'] or '-'}\t{counts}")


def delete(
    path: Annotated[str, typer.Argument(help="Path of the namespace.")],
    server: Server = None,
    data: Data = None,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even with open sessions, whose outputs are discarded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a namespace with its outputs, segments, n-gram counts and learned tables.

    Namespaces below it are kept. The path can be used again, also for another tokenizer.

        suffixsvc namespaces delete acme/old-model --server unix:./suffixsvc.sock
    """
    from suffixsvc.types import DeletedOutputs, DeletionReceipt

    with opened_backend(server, data) as backend:
        outputs = backend.delete_namespace(path, force=force)
    receipt = outputs.receipt if isinstance(outputs, DeletedOutputs) else DeletionReceipt()
    if as_json:
        typer.echo(json.dumps({"namespace": path, "outputs": outputs, **asdict(receipt)}))
        return
    typer.echo(f"{counted(outputs, 'output')} deleted")
    print_silent(receipt.silent)


def _described(backend: SuffixClient | SuffixCache, record: NamespaceRecord) -> dict[str, Any] | None:
    """A namespace with its counts; None if it was deleted in the meantime."""
    from suffixsvc.errors import UnknownNamespaceError

    try:
        stats = backend.namespace(record.path).stats()
    except UnknownNamespaceError:
        return None
    counts = {"outputs": stats.outputs, "tokens": stats.tokens, "bytes": stats.held_bytes}
    return {"path": record.path, "tokenizer": record.tokenizer, **counts}


app = verb_group("List and delete namespaces.", list_, delete)
