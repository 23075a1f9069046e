"""One lookup cache made of another: cut down, or taken over from somebody who wrote no manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.atomic import require_new
from suffixsvc_caches.lookup import LookupTable, write_lookup
from suffixsvc_caches.lookup.pruning import prune_table
from suffixsvc_caches.manifest import (
    CacheFormat,
    Manifest,
    SourceFile,
    TokenizerNote,
    cache_format,
    load_cache,
    manifest_path,
    write_manifest,
)
from suffixsvc_caches.tokenizers import Tokenizer

__all__ = ["import_cache", "prune_cache"]


def prune_cache(
    file: Path, out: Path, budget_bytes: int | None = None, *, kind: str = "auto", force: bool = False
) -> Manifest:
    """Write a cache without what changes no draft, cut down to a budget by expected hits
    (:mod:`suffixsvc_caches.lookup.pruning`), and its manifest.

    Args:
        budget_bytes: None = keep all that changes a draft.
        kind: "static", "dynamic" or "auto".

    Raises:
        InvalidInputError: the new file exists, and not ``force``; nothing would be left. Errors of
            ``load_cache`` and ``write_lookup``.
    """
    _require_new(out, force)
    table, manifest = load_cache(file)
    form = cache_format(table, manifest, kind)
    pruned = prune_table(table.as_loaded(), budget_bytes, static=form is CacheFormat.STATIC)
    if not len(pruned):
        raise InvalidInputError(
            f"nothing would be left of {file}", expected="n-grams that are sure enough to draft", got="none"
        )
    options = {"pruned": True, "budget_bytes": budget_bytes}
    tokenizer = TokenizerNote() if manifest is None else manifest.tokenizer
    return _write(out, pruned, form, tokenizer, file, options, force)


def import_cache(
    file: Path, out: Path, tokenizer: Tokenizer, name: str, *, kind: str = "auto", force: bool = False
) -> Manifest:
    """Take over a cache that has no manifest: as llama.cpp would load it, in order, with a manifest that says
    whose tokens it has.

    Args:
        tokenizer: of the model; ids beyond its vocabulary are refused.
        name: of the tokenizer, for people.

    Raises:
        InvalidInputError: ids beyond the vocabulary, or the new file exists, and not ``force``.
        TokenizerMismatchError: it has a manifest after all, of another tokenizer. Otherwise as above.
    """
    _require_new(out, force)
    table, manifest = load_cache(file, tokenizer.fingerprint)
    loaded = table.as_loaded().in_order()
    largest = max((int(ids.max()) for ids in (loaded.ngrams, loaded.tokens) if ids.size), default=-1)
    if largest >= tokenizer.vocab_size:
        raise InvalidInputError(
            f"{file} has tokens beyond the vocabulary",
            expected=f"0 .. {tokenizer.vocab_size - 1}",
            got=largest,
            remedy="Give the tokenizer of the model that the cache was made for.",
        )
    note = TokenizerNote(tokenizer.fingerprint, tokenizer.vocab_size, name)
    form = cache_format(table, manifest, kind)
    return _write(out, loaded, form, note, file, {"imported": True}, force)


def _require_new(out: Path, force: bool) -> None:
    for path in (out, manifest_path(out)):
        require_new(path, force=force)


def _write(
    out: Path,
    table: LookupTable,
    form: CacheFormat,
    tokenizer: TokenizerNote,
    source: Path,
    options: Mapping[str, object],
    force: bool,
) -> Manifest:
    sources = (SourceFile.of(source),)
    write_lookup(out, table, force=force)
    manifest = Manifest.of(out, table, form, tokenizer=tokenizer, sources=sources, options=options)
    write_manifest(out, manifest, force=force)
    return manifest
