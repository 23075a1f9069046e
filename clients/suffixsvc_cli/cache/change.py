"""``suffixsvc cache merge``, ``prune``, ``import`` and ``diff``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from suffixsvc.verb_options import with_options
from suffixsvc_cli.base.options import AsJson
from suffixsvc_cli.cache.look import CodecOptions, shown_by

if TYPE_CHECKING:
    from suffixsvc_caches.lookup.difference import Difference

#: exit code of diff for different caches, as of the program diff
_DIFFERENT: Final = 1


def merge(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE... OUT", help="Lookup caches to merge, then the output file."),
    ],
    kind: Annotated[
        str, typer.Option("--as", help="Kind of OUT: static, dynamic, or auto (static if all inputs are).")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Add up the counts of lookup caches in a new cache with a manifest.

    Caches of different tokenizers are refused. Like llama-lookup-merge, but records and their followers are
    sorted: the same caches give the same bytes.
    """
    from suffixsvc.errors import InvalidInputError
    from suffixsvc_caches.changing import merge_caches

    *given, out = files
    if not given:
        raise InvalidInputError("FILE... OUT must be at least one lookup cache and the output file")
    manifest = merge_caches(given, out, kind=kind, force=force)
    typer.echo(
        f"{out}: {manifest.bytes:,} bytes, {sum(manifest.ngrams.values()):,} n-grams of {len(given)} files"
    )


def prune(
    file: Annotated[Path, typer.Argument(help="A lookup cache.")],
    out: Annotated[Path, typer.Argument(help="Output file.")],
    budget: Annotated[
        str | None,
        typer.Option(
            help="Maximum size, e.g. 200K. Default: keep everything that changes a draft.", show_default=False
        ),
    ] = None,
    kind: Annotated[str, typer.Option("--as", help="Kind of FILE: static, dynamic, or auto.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Reduce a lookup cache to what changes a draft, and further to a byte budget by expected hits.

    As suffixsvc build --compact and --budget, for an existing file.
    """
    from suffixsvc_caches.changing import prune_cache
    from suffixsvc_caches.sizes import parse_size

    limit = None if budget is None else parse_size(budget, "--budget")
    manifest = prune_cache(file, out, limit, kind=kind, force=force)
    share = manifest.bytes / max(1, file.stat().st_size)
    typer.echo(f"{out}: {manifest.bytes:,} bytes ({share:.1%}), {sum(manifest.ngrams.values()):,} n-grams")


def import_(
    file: Annotated[Path, typer.Argument(help="Lookup cache of llama.cpp or another program.")],
    out: Annotated[Path, typer.Argument(help="Output file.")],
    tokenizer: Annotated[Path, typer.Option(help="The model's GGUF or tokenizer.json.")],
    bos: Annotated[
        str | None, typer.Option(help="Text of the BOS token, for a tokenizer.json, as in build.")
    ] = None,
    eos: Annotated[str | None, typer.Option(help="Text of the EOS token, for a tokenizer.json.")] = None,
    kind: Annotated[str, typer.Option("--as", help="Kind of FILE: static, dynamic, or auto.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Import a lookup cache without a manifest: validated against the vocabulary, sorted, with a manifest."""
    from suffixsvc_caches.changing import import_cache
    from suffixsvc_caches.tokenizers.load import load_tokenizer

    codec = load_tokenizer(tokenizer, bos=bos, eos=eos)
    manifest = import_cache(file, out, codec, tokenizer.name, kind=kind, force=force)
    typer.echo(f"{out}: {manifest.bytes:,} bytes, {sum(manifest.ngrams.values()):,} n-grams")


@with_options
def diff(
    first: Annotated[Path, typer.Argument(help="First lookup cache.")],
    second: Annotated[Path, typer.Argument(help="Second lookup cache.")],
    tokenizer: CodecOptions,
    top: Annotated[int, typer.Option(min=0, help="Number of counts to show, the most different first.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Compare the counts of two lookup caches, in any order.

    Exit code 0: equal; 1: different.
    """
    from suffixsvc_caches.cache_files import load_cache
    from suffixsvc_caches.lookup.difference import compare_tables

    codec = tokenizer.load()
    fingerprint = codec.fingerprint if codec else ""
    (before, manifest), (after, other) = load_cache(first, fingerprint), load_cache(second, fingerprint)
    if manifest and other and manifest.tokenizer.fingerprint != other.tokenizer.fingerprint:
        typer.echo("warning: the manifests name different tokenizers", err=True)
    found = compare_tables(before, after, top=top)
    if as_json:
        typer.echo(json.dumps({"equal": found.equal, **asdict(found)}, indent=2))
    else:
        show = shown_by(codec)
        _print(found)
        for change in found.largest:
            typer.echo(
                f"  {show(change.ngram)} -> {show([change.token])}: {change.before:,} -> {change.after:,}"
            )
    if not found.equal:
        raise typer.Exit(_DIFFERENT)


def _print(found: Difference) -> None:
    for what, (first, both, second) in (("n-grams", found.ngrams), ("followers", found.pairs)):
        typer.echo(f"{what}: {both:,} in both, {first:,} only in the first, {second:,} only in the second")
    typer.echo("equal" if found.equal else f"{found.changed:,} followers in both with different counts")
