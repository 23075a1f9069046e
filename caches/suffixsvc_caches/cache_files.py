"""Lookup caches with their manifests: reading, writing, and the role of a file (static or dynamic)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suffixsvc.errors import InvalidConfigError, StoreForeignError
from suffixsvc_caches.atomic import require_new
from suffixsvc_caches.lookup.files import read_lookup, write_lookup
from suffixsvc_caches.lookup.table import STATIC_ORDER, LookupTable
from suffixsvc_caches.manifest import (
    CacheFormat,
    Manifest,
    SourceFile,
    TokenizerNote,
    manifest_path,
    read_matching_manifest,
    write_manifest,
)


def load_cache(cache: Path, fingerprint: str = "") -> tuple[LookupTable, Manifest | None]:
    """Read a lookup cache and its manifest; None if it has no manifest.

    Args:
        cache: the file.
        fingerprint: see :func:`suffixsvc_caches.manifest.read_matching_manifest`.

    Raises:
        StoreForeignError: the manifest describes another file. Errors of ``read_lookup`` and
            :func:`suffixsvc_caches.manifest.read_matching_manifest`.
    """
    manifest, stale = read_matching_manifest(cache, fingerprint)
    if stale is not None:
        raise StoreForeignError(
            f"{manifest_path(cache)} was written for another file",
            expected=f"{stale.bytes} bytes, xxh3 {stale.xxh3}",
            got=f"{cache.stat().st_size} bytes",
            remedy="If you know the cache's tokenizer, `suffixsvc cache import` writes a new manifest.",
        )
    return read_lookup(cache), manifest


def write_cache(
    cache: Path,
    table: LookupTable,
    format: CacheFormat,
    *,
    tokenizer: TokenizerNote,
    sources: Sequence[Path],
    options: Mapping[str, Any],
    force: bool = False,
) -> Manifest:
    """Write a derived cache and its manifest.

    Args:
        cache: the file to write.
        table: its records.
        format: static or dynamic.
        tokenizer, options: for the manifest.
        sources: the files it was derived from; they are hashed before any file is replaced.
        force: replace existing files.

    Raises:
        InvalidInputError: a file exists, and not ``force``. StoreError: the disk; no partial file is left.
    """
    source_files = tuple(map(SourceFile.of, sources))
    write_lookup(cache, table, force=force)
    manifest = Manifest.of(cache, table, format, tokenizer=tokenizer, sources=source_files, options=options)
    write_manifest(cache, manifest, force=force)
    return manifest


def require_new_cache(cache: Path, *, force: bool) -> None:
    """Check that neither a cache nor its manifest exists, unless ``force``. InvalidInputError: one does."""
    for path in (cache, manifest_path(cache)):
        require_new(path, force=force)


def cache_format(table: LookupTable, manifest: Manifest | None, kind: str = "auto") -> CacheFormat:
    """Determine whether a cache is static or dynamic.

    Args:
        table: its records.
        manifest: its manifest, or None.
        kind: "static", "dynamic", or "auto": the manifest's format; without a manifest static if all records
            are 2-grams.

    Raises:
        InvalidConfigError: another ``kind``.
    """
    kinds = {"static": CacheFormat.STATIC, "dynamic": CacheFormat.DYNAMIC}
    if kind in kinds:
        return kinds[kind]
    if kind != "auto":
        raise InvalidConfigError("kind must be static, dynamic or auto", got=kind[:80])
    if manifest is not None:
        return manifest.format
    return CacheFormat.STATIC if (table.orders() == STATIC_ORDER).all() else CacheFormat.DYNAMIC
