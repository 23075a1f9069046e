"""``suffixsvc cache merge``, ``prune``, ``import`` and ``diff``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from suffixsvc.cli.cache_look import BosToken, EosToken, TokenizerPath, shown_by

if TYPE_CHECKING:
    from suffixsvc_caches.lookup.difference import Difference

__all__ = ["diff", "import_", "merge", "prune"]

#: exit code of diff where two caches differ, as of the program of that name
_DIFFERENT: Final = 1


def merge(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE... OUT", help="Lookup caches, then the new one.")
    ],
    kind: Annotated[
        str, typer.Option("--as", help="static, dynamic, or auto: static where all are.")
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Add the counts of lookup caches up into a new one, with a manifest beside it.

    Caches of different tokenizers are refused. As llama-lookup-merge, but records come in order, and so do
    their followers: the same caches give the same bytes.
    """
    from suffixsvc_caches.merging import merge_caches

    from suffixsvc.errors import InvalidInputError

    *given, out = files
    if not given:
        raise InvalidInputError("nothing to merge", expected="one lookup cache or more, then the new one")
    manifest = merge_caches(given, out, kind=kind, force=force)
    typer.echo(
        f"{out}: {manifest.bytes:,} bytes, {sum(manifest.ngrams.values()):,} n-grams of {len(given)} files"
    )


def prune(
    file: Annotated[Path, typer.Argument(help="A lookup cache.")],
    out: Annotated[Path, typer.Argument(help="The new one.")],
    budget: Annotated[
        str | None,
        typer.Option(
            help="The most it may take: 200K. Default: all that changes a draft.", show_default=False
        ),
    ] = None,
    kind: Annotated[str, typer.Option("--as", help="static, dynamic, or auto: what FILE is.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Cut a lookup cache down: to what changes a draft, and further to a budget by expected hits.

    As suffixsvc build --compact and --budget, for a file that is there already.
    """
    from suffixsvc_caches.changing import prune_cache
    from suffixsvc_caches.sizes import parse_size

    limit = None if budget is None else parse_size(budget, "--budget")
    manifest = prune_cache(file, out, limit, kind=kind, force=force)
    share = manifest.bytes / max(1, file.stat().st_size)
    typer.echo(f"{out}: {manifest.bytes:,} bytes ({share:.1%}), {sum(manifest.ngrams.values()):,} n-grams")


def import_(
    file: Annotated[Path, typer.Argument(help="A lookup cache that llama.cpp or anybody else wrote.")],
    out: Annotated[Path, typer.Argument(help="The new one.")],
    tokenizer: Annotated[Path, typer.Option(help="The model's GGUF or tokenizer.json.")],
    bos: BosToken = None,
    eos: EosToken = None,
    kind: Annotated[str, typer.Option("--as", help="static, dynamic, or auto: what FILE is.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Take over a lookup cache that has no manifest: checked against the vocabulary, as llama.cpp would load
    it, in order, and with a manifest.
    """
    from suffixsvc_caches.changing import import_cache
    from suffixsvc_caches.tokenizers import load_tokenizer

    codec = load_tokenizer(tokenizer, bos=bos, eos=eos)
    manifest = import_cache(file, out, codec, tokenizer.name, kind=kind, force=force)
    typer.echo(f"{out}: {manifest.bytes:,} bytes, {sum(manifest.ngrams.values()):,} n-grams")


def diff(
    first: Annotated[Path, typer.Argument(help="A lookup cache.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    tokenizer: TokenizerPath = None,
    bos: BosToken = None,
    eos: EosToken = None,
    top: Annotated[int, typer.Option(min=0, help="Show so many counts, those that differ most.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Compare what two lookup caches count, in whatever order.

    Exit code 0: the same; 1: not.
    """
    from suffixsvc_caches.lookup.difference import compare_tables
    from suffixsvc_caches.manifest import load_cache
    from suffixsvc_caches.tokenizers import load_tokenizer

    codec = load_tokenizer(tokenizer, bos=bos, eos=eos) if tokenizer else None
    fingerprint = codec.fingerprint if codec else ""
    (before, manifest), (after, other) = load_cache(first, fingerprint), load_cache(second, fingerprint)
    if manifest and other and manifest.tokenizer.fingerprint != other.tokenizer.fingerprint:
        typer.echo("warning: their manifests name different tokenizers", err=True)
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
    typer.echo("the same" if found.equal else f"{found.changed:,} followers in both with different counts")
