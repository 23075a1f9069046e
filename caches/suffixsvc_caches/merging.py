"""Lookup caches added up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suffixsvc.errors import StoreCorruptError, TokenizerMismatchError
from suffixsvc_caches.lookup import LookupTable, merge_tables
from suffixsvc_caches.manifest import (
    CacheFormat,
    Manifest,
    TokenizerNote,
    cache_format,
    load_cache,
    require_new_cache,
    write_cache,
)

__all__ = ["merge_caches"]


def merge_caches(files: Sequence[Path], out: Path, *, kind: str = "auto", force: bool = False) -> Manifest:
    """Write a cache that counts what several do, and its manifest, which names them as its sources.

    Args:
        kind: "static", "dynamic" or "auto": static where all are.

    Raises:
        InvalidInputError: the new file or its manifest exists, and not ``force``. TokenizerMismatchError: two
            of them name different tokenizers. StoreCorruptError: ids beyond the vocabulary that a manifest
            names. Errors of ``load_cache`` and ``write_lookup``.
    """
    require_new_cache(out, force=force)
    tokenizer = TokenizerNote()
    tables, static = [], True
    for file in files:
        table, manifest = load_cache(file)
        static &= cache_format(table, manifest, kind) is CacheFormat.STATIC
        tables.append(table)
        _require_known(file, table, manifest)
        if manifest is not None and manifest.tokenizer.fingerprint:
            if tokenizer.fingerprint not in ("", manifest.tokenizer.fingerprint):
                raise TokenizerMismatchError(
                    f"{file} has another tokenizer than those before it",
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


def _require_known(file: Path, table: LookupTable, manifest: Manifest | None) -> None:
    vocab_size = manifest.tokenizer.vocab_size if manifest else 0
    if vocab_size and table.largest_token >= vocab_size:
        raise StoreCorruptError(
            f"{file} has tokens beyond the vocabulary that its manifest names",
            expected=f"0 .. {vocab_size - 1}",
            got=table.largest_token,
        )
