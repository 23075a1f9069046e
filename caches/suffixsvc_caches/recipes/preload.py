"""Recipes into a service: each its own pinned namespace, which sessions of that tokenizer draft from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from suffixsvc import SuffixCache
from suffixsvc.config import validate_default_reads
from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import NewOutput
from suffixsvc_caches.logs import LogTally, ReadOptions, find_logs, read_calls
from suffixsvc_caches.recipes.recipe import Recipe, find_recipe
from suffixsvc_caches.tokenizers import require_fingerprint

__all__ = ["NAMESPACE", "find_recipes", "preload"]

#: what the namespaces of recipes begin with
NAMESPACE: Final = "preload"
_BATCH: Final = 256
#: note of a namespace: hash of the corpus that is in it, whole, and how many outputs that is
_VERSION: Final = "preload"


def find_recipes(names: Iterable[str]) -> list[Recipe]:
    """Recipes to preload together, each once.

    Raises:
        InvalidConfigError: no such recipe, two of one name, or more than a session can read.
    """
    recipes = list(dict.fromkeys(find_recipe(name) for name in names))
    folders: dict[str, Path] = {}
    for recipe in recipes:
        if folders.setdefault(recipe.name, recipe.folder) != recipe.folder:
            raise InvalidConfigError(
                f"two recipes have the name {recipe.name}",
                expected="a namespace for each",
                got=f"{folders[recipe.name]} and {recipe.folder}",
                remedy="Rename a folder, and what is in it.",
            )
    validate_default_reads(recipe.tokenizer for recipe in recipes)
    return recipes


def preload(cache: SuffixCache, names: Iterable[str]) -> list[str]:
    """Load recipes, those that are not there yet; the namespaces they are in.

    A recipe that was loaded from other bytes is loaded again, and what it held is forgotten.

    Raises:
        InvalidConfigError: as :func:`find_recipes`, or a recipe that was not made. InvalidInputError: a
        corpus that is not whole. TokenizerMismatchError: one of another tokenizer. StoreError.
    """
    return [_load(cache, recipe) for recipe in find_recipes(names)]


def _load(cache: SuffixCache, recipe: Recipe) -> str:
    path = f"{NAMESPACE}/{recipe.name}"
    try:
        version = xxhash.xxh3_64_digest(recipe.corpus.read_bytes())
    except OSError as error:
        raise InvalidConfigError(
            f"the recipe {recipe.name} was not made",
            expected=recipe.corpus.name,
            got=error.strerror,
            remedy="Make it: suffixsvc cache make FOLDER (make caches for those of this project).",
        ) from None
    namespace = cache.namespace(path, tokenizer=recipe.tokenizer)
    if namespace.note(_VERSION) == _note(version, namespace.stats().outputs):
        return path
    namespace.clear()
    for batch in _batches(_outputs(path, recipe)):
        namespace.add_outputs(batch)
    namespace.put_note(_VERSION, _note(version, namespace.stats().outputs))
    return path


def _note(version: bytes, outputs: int) -> bytes:
    """What a corpus is known by, whole and alone: a service without --preload may have written more."""
    return version + outputs.to_bytes(8, "little")


def _outputs(path: str, recipe: Recipe) -> Iterator[NewOutput]:
    reading = ReadOptions.parse(strict=True)  # half a corpus would be taken for all of it ever after
    for file in find_logs([recipe.corpus], reading):
        for call in read_calls(file, reading, LogTally()):
            require_fingerprint(call.tokenizer, recipe.tokenizer, str(recipe.corpus))
            labels = {"agent": call.agent} if call.agent else {}
            tokens, prompt = np.asarray(call.response, np.int32), np.asarray(call.prompt, np.int32)
            yield NewOutput(path, tokens, (len(tokens),), prompt, labels, corpus=True)


def _batches(outputs: Iterator[NewOutput]) -> Iterator[Sequence[NewOutput]]:
    batch: list[NewOutput] = []
    for output in outputs:
        batch.append(output)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
