"""Execution of a recipe: writes its corpus and its static lookup cache."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.building.lookup_caches import LookupSpec, WrittenFile
from suffixsvc_caches.building.run import build
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.logs import LogCall, ReadReport, find_logs, read_calls
from suffixsvc_caches.recipes.recipe import Recipe
from suffixsvc_caches.tokenizers.load import require_fingerprint


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """Result of a recipe.

    Attributes:
        calls, tokens: calls and response tokens of the corpus.
        corpus_bytes: size of the corpus file.
        static: the lookup cache.
    """

    calls: int
    tokens: int
    corpus_bytes: int
    static: WrittenFile | None


def make_recipe(recipe: Recipe, *, force: bool = False) -> RecipeResult:
    """Write the static cache and the corpus of a recipe; the same logs give the same bytes.

    Raises:
        InvalidInputError: a file exists, and not ``force``; a log is missing, or has texts.
        TokenizerMismatchError: ids of another tokenizer than the recipe's.
        StoreError: a file cannot be written.
    """
    calls = tokens = 0
    with new_file(recipe.corpus, force=force) as raw:
        # No name and no time in the header, so that the same calls give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            for call in _calls(recipe):
                require_fingerprint(call.tokenizer, recipe.tokenizer, f"the log of the recipe {recipe.name}")
                packed.write(_line(call))
                calls, tokens = calls + 1, tokens + len(call.response)
        size = raw.tell()
        # Inside the block: all ids are checked before the cache is replaced, and both files appear or none.
        made = build(
            BuildSpec(
                logs=recipe.logs,
                reading=recipe.reading,
                static=LookupSpec(recipe.static, recipe.static_budget_bytes, compact=True),
                context_tokens=recipe.context_tokens,
                dedupe=True,
                force=force,
            )
        )
    return RecipeResult(calls, tokens, size, made.caches.static)


def _calls(recipe: Recipe) -> Iterator[LogCall]:
    reading = replace(recipe.reading, want_prompt=True)
    seen = set[bytes]()
    for file in find_logs(recipe.logs, reading):
        for call in read_calls(file, reading, ReadReport()):
            if isinstance(call.response, str) or isinstance(call.prompt, str):
                raise InvalidInputError(
                    f"{file.path} must be a recording of token ids", got="texts", remedy="Record it again."
                )
            if (digest := call.response.tobytes()) not in seen:
                seen.add(digest)
                yield call


def _line(call: LogCall) -> bytes:
    plain = {
        "agent": call.agent,
        "session_id": call.session,
        "prompt_token_ids": list(map(int, call.prompt[-PROMPT_TAIL_TOKENS:])),
        "response_token_ids": list(map(int, call.response)),
        "tokenizer": call.tokenizer,
    }
    return json.dumps(plain, separators=(",", ":")).encode() + b"\n"
