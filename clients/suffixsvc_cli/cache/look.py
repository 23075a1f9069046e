"""``suffixsvc cache inspect`` and ``verify``: contents and integrity of a lookup cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from suffixsvc.verb_options import option, with_options
from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from suffixsvc_caches.lookup.faults import Fault
    from suffixsvc_caches.lookup.inspect import Inspection, Record
    from suffixsvc_caches.manifest import Manifest
    from suffixsvc_caches.tokenizers.base import Tokenizer

#: number of faults of one file that are printed
_SHOWN: Final = 20
#: exit code of verify for a damaged file
_BROKEN: Final = 2


@dataclass(frozen=True, slots=True)
class CodecOptions:
    """The tokenizer of a lookup cache."""

    tokenizer: Path | None = option(
        None, help="The model's GGUF or tokenizer.json; a cache of another tokenizer is refused."
    )
    bos: str | None = option(None, help="Text of the BOS token, for a tokenizer.json, as in build.")
    eos: str | None = option(None, help="Text of the EOS token, for a tokenizer.json.")

    def load(self) -> Tokenizer | None:
        """The tokenizer; None without --tokenizer."""
        from suffixsvc_caches.tokenizers.load import load_tokenizer

        return load_tokenizer(self.tokenizer, bos=self.bos, eos=self.eos) if self.tokenizer else None


@with_options
def inspect(
    file: Annotated[Path, typer.Argument(help="Lookup cache.")],
    tokenizer: CodecOptions,
    kind: Annotated[
        str,
        typer.Option(
            "--as", help="Kind of FILE: static, dynamic, or auto (from its manifest, else from its n-grams)."
        ),
    ] = "auto",
    top: Annotated[int, typer.Option(min=0, help="Number of n-grams to show, the most frequent first.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print the contents of a lookup cache, and warnings about its use in llama.cpp."""
    from suffixsvc_caches.cache_files import cache_format
    from suffixsvc_caches.lookup.files import read_lookup
    from suffixsvc_caches.lookup.inspect import inspect_table
    from suffixsvc_caches.manifest import CacheFormat, manifest_path, read_matching_manifest

    codec = tokenizer.load()
    manifest, stray = read_matching_manifest(file, codec.fingerprint if codec else "")
    table = read_lookup(file)
    static = cache_format(table, manifest, kind) is CacheFormat.STATIC
    found = inspect_table(table, static=static, top=top)
    warnings = [*found.warnings()]
    if codec is not None and found.largest_token >= codec.vocab_size:
        warnings.append(
            f"token {found.largest_token} is beyond the tokenizer's {codec.vocab_size:,}: the cache is of "
            "another model"
        )
    if stray is not None:
        warnings.append(
            f"{manifest_path(file).name} belongs to another file, its size or checksum differs: "
            "the tokenizer of the cache is unknown"
        )
    elif manifest is None:
        warnings.append("there is no manifest: the tokenizer of the cache is unknown")
    if as_json:
        plain: dict[str, Any] = {"file": str(file), **asdict(found)}
        plain["ngrams"] = {str(order): number for order, number in found.ngrams.items()}
        for record, shown in zip(found.top, plain["top"], strict=True):
            decodable = codec is not None and all(0 <= token < codec.vocab_size for token in record.ngram)
            shown["text"] = codec.decode(record.ngram) if codec and decodable else None
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
        tokenizer = manifest.tokenizer
        sources = ", ".join(source.file for source in manifest.sources[:3])
        more = f" and {len(manifest.sources) - 3} more" if len(manifest.sources) > 3 else ""
        lines = [
            f"made by {manifest.made_by or 'unknown'} of {sources or 'unknown sources'}{more}",
            f"tokenizer {tokenizer.fingerprint or 'unknown'} {tokenizer.name} ({tokenizer.vocab_size:,} "
            "tokens)",
        ]
        for line in lines:  # untrusted text: control characters must not reach the terminal
            typer.echo("".join(each if each.isprintable() else "\ufffd" for each in line))
    for order, number in found.ngrams.items():
        typer.echo(f"  {order}-grams: {number:,} ({number / records:.1%})")
    if records:
        typer.echo(
            f"  {found.firing:,} ({found.firing / records:.1%}) have a follower that is frequent enough to "
            f"draft; at most {found.widest:,} followers; largest token {found.largest_token}"
        )
    if found.top:
        table = Table("n-gram", "count", "followers", title="most frequent", title_justify="left")
        for record in found.top:
            table.add_row(decode(record.ngram), f"{record.total:,}", _followers(record, decode))
        Console().print(table, markup=False)


def _followers(record: Record, decode: Callable[[Sequence[int]], str]) -> str:
    return ", ".join(f"{decode([token])} {count / record.total:.0%}" for token, count in record.followers)


def shown_by(codec: Tokenizer | None) -> Callable[[Sequence[int]], str]:
    """How token ids are printed: as text if a tokenizer knows them, else as numbers."""

    size = codec.vocab_size if codec else 0

    def show(token_ids: Sequence[int]) -> str:
        runs = ((known, list(run)) for known, run in groupby(token_ids, lambda token: 0 <= token < size))
        return " ".join(
            repr(codec.decode(run)) if codec and known else " ".join(map(str, run)) for known, run in runs
        )

    return show


def verify(
    files: Annotated[list[Path], typer.Argument(help="Lookup caches.")],
    as_json: AsJson = False,
) -> None:
    """Validate lookup caches as llama.cpp would read them, and report the offset of every fault.

    A manifest beside a cache is compared with it. Unreadable files are reported, and the others are checked
    nevertheless. Exit code 0: all files are valid; 2: one is not.
    """
    from suffixsvc_caches.lookup.faults import FaultEffect

    broken = False
    plain = []
    for file in files:
        faults, records, mismatches = _verified(file)
        harmful = any(fault.effect is not FaultEffect.ODD for fault in faults) or bool(mismatches)
        broken |= harmful
        fault_lines = [f"byte {fault.offset}: {fault.what} ({fault.effect.value})" for fault in faults]
        plain.append({"file": str(file), "whole": not harmful, "records": records,
                      "faults": [{"byte": fault.offset, "what": fault.what, "harm": fault.effect.name.lower()}
                                 for fault in faults], "manifest": mismatches})  # fmt: skip
        if as_json:
            continue
        typer.echo(f"{file}: {'not whole' if harmful else 'whole'}, {records:,} n-grams")
        for line in [*fault_lines[:_SHOWN], *mismatches]:
            typer.echo(f"  {line}")
        if len(fault_lines) > _SHOWN:
            typer.echo("  and more faults")
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    if broken:
        raise typer.Exit(_BROKEN)


def _verified(file: Path) -> tuple[list[Fault], int, list[str]]:
    """Faults of a file, number of complete records, and differences from its manifest or a read error."""
    from suffixsvc.errors import SuffixError
    from suffixsvc_caches.lookup.faults import FaultEffect, find_faults
    from suffixsvc_caches.lookup.files import read_lookup, read_words, record_starts
    from suffixsvc_caches.manifest import find_mismatches, read_manifest

    try:
        words, rest = read_words(file)
    except SuffixError as error:
        return [], 0, [str(error)]
    starts, bad = record_starts(words)
    harmful = [*islice(find_faults(words, starts, bad, rest, odd=False), _SHOWN + 1)]
    odd = (fault for fault in find_faults(words, starts, bad, rest) if fault.effect is FaultEffect.ODD)
    faults = sorted([*harmful, *islice(odd, _SHOWN + 1)], key=lambda fault: fault.offset)
    try:
        manifest = None if harmful else read_manifest(file)
        mismatches = [*find_mismatches(file, manifest, read_lookup(file))] if manifest else []
    except SuffixError as error:
        mismatches = [str(error)]
    return faults, len(starts) - 1, mismatches
