"""One lookup cache made of another: cut down, or taken over from somebody who wrote no manifest."""

from __future__ import annotations

from pathlib import Path

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.lookup import read_lookup
from suffixsvc_caches.lookup.pruning import prune_table, require_budget
from suffixsvc_caches.manifest import (
    CacheFormat,
    Manifest,
    TokenizerNote,
    cache_format,
    load_cache,
    read_own_manifest,
    require_new_cache,
    write_cache,
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
        InvalidInputError: the new file exists, and not ``force``; nothing would be left.
        InvalidConfigError: a budget that no record fits. Errors of ``load_cache`` and ``write_lookup``.
    """
    require_new_cache(out, force=force)
    require_budget(budget_bytes)
    table, manifest = load_cache(file)
    form = cache_format(table, manifest, kind)
    pruned = prune_table(table.as_loaded(), budget_bytes, static=form is CacheFormat.STATIC)
    if not len(pruned):
        raise InvalidInputError(
            f"nothing would be left of {file}", expected="n-grams that are sure enough to draft", got="none"
        )
    options = {"pruned": True, "budget_bytes": budget_bytes}
    tokenizer = TokenizerNote() if manifest is None else manifest.tokenizer
    return write_cache(out, pruned, form, tokenizer=tokenizer, sources=[file], options=options, force=force)


def import_cache(
    file: Path, out: Path, tokenizer: Tokenizer, name: str, *, kind: str = "auto", force: bool = False
) -> Manifest:
    """Take over a cache without a manifest of its own: as llama.cpp would load it, in order, with a manifest
    that says whose tokens it has.

    Args:
        tokenizer: of the model; ids beyond its vocabulary are refused.
        name: of the tokenizer, for people.

    Raises:
        InvalidInputError: ids beyond the vocabulary, nothing to take over, or the new file exists, and not
            ``force``.
        TokenizerMismatchError: it has a manifest after all, of another tokenizer. Otherwise as above.
    """
    require_new_cache(out, force=force)
    # Whoever rewrote the file may have left its old manifest beside it: that one does not count.
    manifest, _ = read_own_manifest(file, tokenizer.fingerprint)
    table = read_lookup(file)
    loaded = table.as_loaded().in_order()
    if not len(loaded):
        raise InvalidInputError(
            f"llama.cpp would use nothing of {file}",
            expected="n-grams of token ids",
            got=f"{len(table)} others",
        )
    if loaded.largest_token >= tokenizer.vocab_size:
        raise InvalidInputError(
            f"{file} has tokens beyond the vocabulary",
            expected=f"0 .. {tokenizer.vocab_size - 1}",
            got=loaded.largest_token,
            remedy="Give the tokenizer of the model that the cache was made for.",
        )
    note = TokenizerNote(tokenizer.fingerprint, tokenizer.vocab_size, name)
    form = cache_format(table, manifest, kind)
    options = {"imported": True}
    return write_cache(out, loaded, form, tokenizer=note, sources=[file], options=options, force=force)
