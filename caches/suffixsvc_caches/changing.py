"""Derivation of lookup caches from others: merging, pruning, and import of files without a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suffixsvc.errors import InvalidInputError, StoreCorruptError, TokenizerMismatchError
from suffixsvc_caches.cache_files import cache_format, load_cache, require_new_cache, write_cache
from suffixsvc_caches.lookup.files import read_lookup
from suffixsvc_caches.lookup.pruning import prune_table, require_budget
from suffixsvc_caches.lookup.table import merge_tables
from suffixsvc_caches.manifest import CacheFormat, Manifest, TokenizerNote, read_matching_manifest
from suffixsvc_caches.tokenizers.base import Tokenizer


def prune_cache(
    file: Path, out: Path, budget_bytes: int | None = None, *, kind: str = "auto", force: bool = False
) -> Manifest:
    """Write a pruned cache and its manifest.

    Records that change no draft are dropped, then those with the lowest expected hits until the file fits the
    budget (:mod:`suffixsvc_caches.lookup.pruning`).

    Args:
        file: the cache to prune.
        out: the file to write.
        budget_bytes: size limit of the file; None keeps all records that change a draft.
        kind: "static", "dynamic" or "auto".
        force: replace ``out`` if it exists.

    Raises:
        InvalidInputError: the new file exists, and not ``force``; or no record would be left.
        InvalidConfigError: the budget is smaller than one record. Errors of ``load_cache`` and
            ``write_lookup``.
    """
    require_new_cache(out, force=force)
    require_budget(budget_bytes)
    table, manifest = load_cache(file)
    form = cache_format(table, manifest, kind)
    pruned = prune_table(table.as_loaded(), budget_bytes, static=form is CacheFormat.STATIC)
    if not len(pruned):
        raise InvalidInputError(
            f"{file} must have n-grams that reach the thresholds for drafting", got="no such n-gram"
        )
    options = {"pruned": True, "budget_bytes": budget_bytes}
    tokenizer = TokenizerNote() if manifest is None else manifest.tokenizer
    return write_cache(out, pruned, form, tokenizer=tokenizer, sources=[file], options=options, force=force)


def import_cache(
    file: Path, out: Path, tokenizer: Tokenizer, name: str, *, kind: str = "auto", force: bool = False
) -> Manifest:
    """Import a cache that has no manifest: write its records as llama.cpp would load them, sorted, and a
    manifest that names the tokenizer.

    Args:
        file: the cache to import.
        out: the file to write.
        tokenizer: the model's; ids beyond its vocabulary are refused.
        name: display name of the tokenizer.
        kind: "static", "dynamic" or "auto".
        force: replace ``out`` if it exists.

    Raises:
        InvalidInputError: ids beyond the vocabulary, no usable n-gram, or the new file exists, and not
            ``force``.
        TokenizerMismatchError: the file's manifest names another tokenizer. Otherwise as :func:`prune_cache`.
    """
    require_new_cache(out, force=force)
    # A manifest whose checksum does not match describes an older file and is ignored.
    manifest, _ = read_matching_manifest(file, tokenizer.fingerprint)
    table = read_lookup(file)
    loaded = table.as_loaded().in_order()
    if not len(loaded):
        raise InvalidInputError(
            f"{file} must have n-grams of token ids",
            got=f"{len(table)} records that llama.cpp never uses",
        )
    if loaded.largest_token >= tokenizer.vocab_size:
        raise InvalidInputError(
            f"token ids of {file} must be in the tokenizer's vocabulary",
            expected=f"0 .. {tokenizer.vocab_size - 1}",
            got=loaded.largest_token,
            remedy="Give the tokenizer of the model that the cache was built for.",
        )
    note = TokenizerNote(tokenizer.fingerprint, tokenizer.vocab_size, name)
    form = cache_format(table, manifest, kind)
    options = {"imported": True}
    return write_cache(out, loaded, form, tokenizer=note, sources=[file], options=options, force=force)


def merge_caches(files: Sequence[Path], out: Path, *, kind: str = "auto", force: bool = False) -> Manifest:
    """Write the sum of several caches, and a manifest that lists them as its sources.

    Args:
        files: the caches to merge.
        out: the file to write.
        kind: "static", "dynamic" or "auto": static if all caches are static.
        force: replace ``out`` if it exists.

    Raises:
        InvalidInputError: the new file or its manifest exists, and not ``force``.
        TokenizerMismatchError: two manifests name different tokenizers.
        StoreCorruptError: ids beyond the vocabulary that a manifest names. Errors of ``load_cache`` and
            ``write_lookup``.
    """
    require_new_cache(out, force=force)
    tokenizer = TokenizerNote()
    tables, static = [], True
    for file in files:
        table, manifest = load_cache(file)
        static &= cache_format(table, manifest, kind) is CacheFormat.STATIC
        tables.append(table)
        if manifest is None:
            continue
        vocab_size = manifest.tokenizer.vocab_size
        if vocab_size and table.largest_token >= vocab_size:
            raise StoreCorruptError(
                f"token ids of {file} must be in the vocabulary that its manifest names",
                expected=f"0 .. {vocab_size - 1}",
                got=table.largest_token,
            )
        if manifest.tokenizer.fingerprint:
            if tokenizer.fingerprint not in ("", manifest.tokenizer.fingerprint):
                raise TokenizerMismatchError(
                    f"{file} must have the tokenizer of the files before it",
                    expected=tokenizer.fingerprint,
                    got=manifest.tokenizer.fingerprint,
                )
            tokenizer = manifest.tokenizer
    return write_cache(
        out,
        merge_tables(tables),
        CacheFormat.STATIC if static else CacheFormat.DYNAMIC,
        tokenizer=tokenizer,
        sources=files,
        options={"merged": len(files)},
        force=force,
    )
