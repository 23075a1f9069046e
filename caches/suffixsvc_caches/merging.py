"""Merging of lookup caches: the counts of several files are added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from suffixsvc.errors import StoreCorruptError, TokenizerMismatchError
from suffixsvc_caches.cache_files import cache_format, load_cache, require_new_cache, write_cache
from suffixsvc_caches.lookup import LookupTable, merge_tables
from suffixsvc_caches.manifest import CacheFormat, Manifest, TokenizerNote

__all__ = ["merge_caches"]


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
        _require_in_vocabulary(file, table, manifest)
        if manifest is not None and manifest.tokenizer.fingerprint:
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


def _require_in_vocabulary(file: Path, table: LookupTable, manifest: Manifest | None) -> None:
    vocab_size = manifest.tokenizer.vocab_size if manifest else 0
    if vocab_size and table.largest_token >= vocab_size:
        raise StoreCorruptError(
            f"token ids of {file} must be in the vocabulary that its manifest names",
            expected=f"0 .. {vocab_size - 1}",
            got=table.largest_token,
        )
