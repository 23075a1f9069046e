"""Making what a recipe says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.building import BuildSpec, LookupSpec, Written, build
from suffixsvc_caches.logs import LogCall, LogTally, find_logs, read_calls
from suffixsvc_caches.recipes.recipe import Recipe
from suffixsvc_caches.tokenizers import require_fingerprint

__all__ = ["Made", "make_recipe"]


@dataclass(frozen=True, slots=True)
class Made:
    """What was made.

    Attributes:
        calls, tokens: in the corpus.
        corpus_bytes: size of its file.
        static: the lookup cache.
    """

    calls: int
    tokens: int
    corpus_bytes: int
    static: Written | None


def make_recipe(recipe: Recipe, *, force: bool = False) -> Made:
    """Make the static cache and the corpus of a recipe: the same logs give the same bytes.

    Raises:
        InvalidInputError: a file exists, and not ``force``; a log is missing, or holds texts.
        TokenizerMismatchError: ids of another tokenizer than the recipe names. StoreError: the disk.
    """
    calls = tokens = 0
    with new_file(recipe.corpus, force=force) as raw:
        # No name and no time in the header: the same calls are the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            for call in _calls(recipe):
                require_fingerprint(call.tokenizer, recipe.tokenizer, f"the log of the recipe {recipe.name}")
                packed.write(_line(call))
                calls, tokens = calls + 1, tokens + len(call.response)
        size = raw.tell()
        # Here, so that all ids are checked before a cache is replaced, and no corpus appears without it.
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
    return Made(calls, tokens, size, made.static)


def _calls(recipe: Recipe) -> Iterator[LogCall]:
    reading = replace(recipe.reading, want_prompt=True)
    seen = set[bytes]()
    for file in find_logs(recipe.logs, reading):
        for call in read_calls(file, reading, LogTally()):
            if isinstance(call.response, str) or isinstance(call.prompt, str):
                raise InvalidInputError(
                    f"{file.path} holds texts", expected="a recording of token ids", remedy="Record it again."
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
