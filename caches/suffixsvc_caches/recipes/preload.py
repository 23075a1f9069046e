"""Preloading of recipes: each corpus in a pinned namespace, from which sessions of its tokenizer draft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from suffixsvc import SuffixCache
from suffixsvc.config import validate_default_reads
from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import NewOutput
from suffixsvc_caches.building.corpus import output_batches
from suffixsvc_caches.logs import ReadOptions, ReadReport, find_logs, read_calls
from suffixsvc_caches.recipes.recipe import Recipe, find_recipe
from suffixsvc_caches.tokenizers.load import require_fingerprint

#: parent of the recipes' namespaces
NAMESPACE: Final = "preload"
#: key of a namespace's note: hash of its corpus and number of outputs
_VERSION: Final = "preload"


def find_recipes(names: Iterable[str]) -> list[Recipe]:
    """Find recipes by name or folder, without repetitions.

    Raises:
        InvalidConfigError: no such recipe, two with the same name, or more than a session can read.
    """
    recipes = list(dict.fromkeys(find_recipe(name) for name in names))
    folders: dict[str, Path] = {}
    for recipe in recipes:
        if folders.setdefault(recipe.name, recipe.folder) != recipe.folder:
            raise InvalidConfigError(
                f"recipes must have different names, not both {recipe.name}",
                got=f"{folders[recipe.name]} and {recipe.folder}",
                remedy="Rename a folder and its files.",
            )
    validate_default_reads(recipe.tokenizer for recipe in recipes)
    return recipes


def preload(cache: SuffixCache, names: Iterable[str]) -> list[str]:
    """Load the recipes that are not loaded yet; return the namespaces of all.

    If the corpus of a recipe has changed, its namespace is cleared and loaded again.

    Raises:
        InvalidConfigError: as :func:`find_recipes`, or a recipe has no corpus file.
        InvalidInputError: a corpus is damaged.
        TokenizerMismatchError: a corpus has ids of another tokenizer. StoreError.
    """
    return [_load(cache, recipe) for recipe in find_recipes(names)]


def _load(cache: SuffixCache, recipe: Recipe) -> str:
    path = f"{NAMESPACE}/{recipe.name}"
    try:
        version = xxhash.xxh3_64_digest(recipe.corpus.read_bytes())
    except OSError as error:
        raise InvalidConfigError(
            f"the recipe {recipe.name} must have a corpus",
            expected=recipe.corpus.name,
            got=error.strerror,
            remedy="Run suffixsvc cache make FOLDER (make caches for those of this project).",
        ) from None
    namespace = cache.namespace(path, tokenizer=recipe.tokenizer)
    if namespace.note(_VERSION) == _note(version, namespace.stats().outputs):
        return path
    namespace.delete(superseded=True)
    for batch in output_batches(_outputs(path, recipe)):
        namespace.add_outputs(batch)
    namespace.put_note(_VERSION, _note(version, namespace.stats().outputs))
    return path


def _note(version: bytes, outputs: int) -> bytes:
    """Note of a complete corpus. The number of outputs detects others, written without --preload."""
    return version + outputs.to_bytes(8, "little")


def _outputs(path: str, recipe: Recipe) -> Iterator[NewOutput]:
    reading = ReadOptions.parse(strict=True)  # a partial corpus would be recorded as complete
    for file in find_logs([recipe.corpus], reading):
        for call in read_calls(file, reading, ReadReport()):
            require_fingerprint(call.tokenizer, recipe.tokenizer, str(recipe.corpus))
            labels = {"agent": call.agent} if call.agent else {}
            tokens, prompt = np.asarray(call.response, np.int32), np.asarray(call.prompt, np.int32)
            yield NewOutput(path, tokens, (len(tokens),), prompt, labels, corpus=True)
