"""``suffixsvc cache inspect`` and ``verify``: what is in a lookup cache, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from suffixsvc_caches.lookup import Fault
    from suffixsvc_caches.lookup.inspect import Inspection, Record
    from suffixsvc_caches.manifest import Manifest
    from suffixsvc_caches.tokenizers import Tokenizer

__all__ = ["BosToken", "EosToken", "TokenizerPath", "inspect", "shown_by", "verify"]

#: faults of one file that are shown
_SHOWN: Final = 20
#: exit code of verify where a file is not whole
_BROKEN: Final = 2

TokenizerPath = Annotated[
    Path | None, typer.Option(help="The model's GGUF or tokenizer.json; what does not fit it is refused.")
]
BosToken = Annotated[
    str | None,
    typer.Option("--bos", help="Of a tokenizer.json: the text of the model's first token, as for build."),
]
EosToken = Annotated[
    str | None, typer.Option("--eos", help="Of a tokenizer.json: the text of the model's last token.")
]


def inspect(
    file: Annotated[Path, typer.Argument(help="A lookup cache.")],
    tokenizer: TokenizerPath = None,
    bos: BosToken = None,
    eos: EosToken = None,
    kind: Annotated[
        str, typer.Option("--as", help="static, dynamic, or auto: its manifest, else its n-grams, say.")
    ] = "auto",
    top: Annotated[int, typer.Option(min=0, help="Show so many n-grams, those seen most often.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show what a lookup cache holds, and warn of what llama.cpp makes of it."""
    from suffixsvc_caches.lookup import read_lookup
    from suffixsvc_caches.lookup.inspect import inspect_table
    from suffixsvc_caches.manifest import CacheFormat, cache_format, manifest_path, read_own_manifest
    from suffixsvc_caches.tokenizers import load_tokenizer

    codec = load_tokenizer(tokenizer, bos=bos, eos=eos) if tokenizer else None
    manifest, stray = read_own_manifest(file, codec.fingerprint if codec else "")
    table = read_lookup(file)
    static = cache_format(table, manifest, kind) is CacheFormat.STATIC
    found = inspect_table(table, static=static, top=top)
    warnings = [*found.warnings()]
    if codec is not None and found.largest_token >= codec.vocab_size:
        warnings.append(
            f"token {found.largest_token} is beyond the tokenizer's {codec.vocab_size:,}: "
            "the cache belongs to another model"
        )
    if stray is not None:
        warnings.append(
            f"{manifest_path(file).name} belongs to another file, its size or checksum differs: "
            "nothing says whose tokens these are"
        )
    elif manifest is None:
        warnings.append("there is no manifest: nothing says whose tokens these are")
    if as_json:
        plain: dict[str, Any] = {"file": str(file), **asdict(found)}
        plain["ngrams"] = {str(order): number for order, number in found.ngrams.items()}
        for record, shown in zip(found.top, plain["top"], strict=True):
            known = codec is not None and all(0 <= token < codec.vocab_size for token in record.ngram)
            shown["text"] = codec.decode(record.ngram) if codec and known else None
        plain |= {"warnings": warnings, "manifest": json.loads(manifest.as_json()) if manifest else None}
        typer.echo(json.dumps(plain, indent=2))
        return
    _print(file, found, manifest, shown_by(codec))
    for warning in warnings:
        typer.echo(f"warning: {warning}")


def _print(
    file: Path, found: Inspection, manifest: Manifest | None, decode: Callable[[Sequence[int]], str]
) -> None:
    from rich.console import Console
    from rich.table import Table

    records = sum(found.ngrams.values())
    typer.echo(
        f"{file}: {'static' if found.static else 'dynamic'} cache, {found.bytes:,} bytes, "
        f"{records:,} n-grams, {found.pairs:,} followers, counted {found.count:,} times"
    )
    if manifest is not None:
        whose = manifest.tokenizer
        sources = ", ".join(source.file for source in manifest.sources[:3])
        more = f" and {len(manifest.sources) - 3} more" if len(manifest.sources) > 3 else ""
        says = [
            f"made by {manifest.made_by or 'unknown'} of {sources or 'unknown sources'}{more}",
            f"tokenizer {whose.fingerprint or 'unknown'} {whose.name} ({whose.vocab_size:,} tokens)",
        ]
        for line in says:  # somebody else may have written it: nothing in it commands the terminal
            typer.echo("".join(each if each.isprintable() else "\ufffd" for each in line))
    for order, number in found.ngrams.items():
        typer.echo(f"  {order}-grams: {number:,} ({number / records:.1%})")
    if records:
        typer.echo(
            f"  {found.firing:,} ({found.firing / records:.1%}) are sure enough to draft; "
            f"at most {found.widest:,} followers; largest token {found.largest_token}"
        )
    if found.top:
        table = Table("n-gram", "seen", "followed by", title="seen most often", title_justify="left")
        for record in found.top:
            table.add_row(decode(record.ngram), f"{record.total:,}", _followers(record, decode))
        Console().print(table, markup=False)


def _followers(record: Record, decode: Callable[[Sequence[int]], str]) -> str:
    return ", ".join(f"{decode([token])} {count / record.total:.0%}" for token, count in record.followers)


def shown_by(codec: Tokenizer | None) -> Callable[[Sequence[int]], str]:
    """How token ids are shown: as text where there is a tokenizer that knows them."""

    size = codec.vocab_size if codec else 0

    def show(token_ids: Sequence[int]) -> str:
        runs = ((known, list(run)) for known, run in groupby(token_ids, lambda token: 0 <= token < size))
        return " ".join(
            repr(codec.decode(run)) if codec and known else " ".join(map(str, run)) for known, run in runs
        )

    return show


def verify(
    files: Annotated[list[Path], typer.Argument(help="Lookup caches.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Read lookup caches as llama.cpp would, and name the byte where one goes wrong.

    A manifest beside a cache is compared with it. What cannot be read is told, and the others
    are looked at all the same. Exit code 0: all are whole; 2: one is not.
    """
    from suffixsvc_caches.lookup import Harm

    broken = False
    plain = []
    for file in files:
        faults, records, mismatches = _verified(file)
        harmful = any(fault.harm is not Harm.ODD for fault in faults) or bool(mismatches)
        broken |= harmful
        said = [f"byte {fault.offset}: {fault.what} ({fault.harm.value})" for fault in faults]
        plain.append({"file": str(file), "whole": not harmful, "records": records,
                      "faults": [{"byte": fault.offset, "what": fault.what, "harm": fault.harm.name.lower()}
                                 for fault in faults], "manifest": mismatches})  # fmt: skip
        if as_json:
            continue
        typer.echo(f"{file}: {'not whole' if harmful else 'whole'}, {records:,} n-grams")
        for line in [*said[:_SHOWN], *mismatches]:
            typer.echo(f"  {line}")
        if len(said) > _SHOWN:
            typer.echo("  and more")
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    if broken:
        raise typer.Exit(_BROKEN)


def _verified(file: Path) -> tuple[list[Fault], int, list[str]]:
    """Faults of a file, whole records, and what its manifest says otherwise, or that one of them cannot be
    read."""
    from suffixsvc_caches.lookup import Harm, find_faults, read_lookup
    from suffixsvc_caches.lookup.files import read_words, record_starts
    from suffixsvc_caches.manifest import find_mismatches, read_manifest

    from suffixsvc.errors import SuffixError

    try:
        words, rest = read_words(file)
    except SuffixError as error:
        return [], 0, [str(error)]
    starts, bad = record_starts(words)
    harmful = [*islice(find_faults(words, starts, bad, rest, odd=False), _SHOWN + 1)]
    odd = (fault for fault in find_faults(words, starts, bad, rest) if fault.harm is Harm.ODD)
    faults = sorted([*harmful, *islice(odd, _SHOWN + 1)], key=lambda fault: fault.offset)
    try:
        manifest = None if harmful else read_manifest(file)
        mismatches = [*find_mismatches(file, manifest, read_lookup(file))] if manifest else []
    except SuffixError as error:
        mismatches = [str(error)]
    return faults, len(starts) - 1, mismatches
