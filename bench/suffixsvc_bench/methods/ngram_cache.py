"""llama.cpp's n-gram cache lookup, as in ``llama-lookup`` (suffixsvc_caches.lookup).

The context cache of a call is merged into the dynamic cache when the call ends. There is no static cache, as
for a user who has not built one. With warm-up calls (``--train``, ``--train-log``) a second method builds one
from their answers, as ``llama-lookup-create`` does from a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from suffixsvc.types import Draft, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings, guess
from suffixsvc_caches.lookup.algorithm import DRAFT_TOKENS, LookupDrafter, NgramCounts
from suffixsvc_caches.lookup.table import STATIC_ORDER


class NgramCache(Method):
    """Three caches: of the call's own text, of earlier calls, of a corpus."""

    def __init__(self, settings: Settings) -> None:
        self._static, self._dynamic = NgramCounts(orders=[STATIC_ORDER]), NgramCounts()
        self._drafter = LookupDrafter(self._static, self._dynamic, draft_tokens=settings.max_draft_tokens)

    def train(self, texts: Iterable[TokenArray]) -> None:
        """See :class:`Method`."""
        for text in texts:
            self._static.extend(text.tolist(), 0)

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        self._drafter.begin(prompt.tolist())

    def draft(self) -> Draft:
        """See :class:`Method`."""
        return guess(self._drafter.draft())

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        self._drafter.append(token_ids.tolist())

    def end(self) -> None:
        """See :class:`Method`."""
        self._drafter.end()

    def memory_bytes(self) -> int:
        """See :class:`Method`."""
        return self._dynamic.file_bytes() + self._static.file_bytes()


_DYNAMIC = MethodSpec(
    "ngram-cache",
    "llama.cpp ngram-cache",
    "tables of followers of the last 1 to 4 tokens: of this call, then of earlier calls",
    DRAFT_TOKENS,
    NgramCache,
    memory="the dynamic cache as llama.cpp's file",
)
SPECS = (
    _DYNAMIC,
    replace(
        _DYNAMIC,
        key="ngram-cache-static",
        title="llama.cpp ngram-cache, static",
        description="the same with a static cache, built before from the warm-up answers",
        memory="the dynamic and the static cache as llama.cpp's files",
        trains_offline=True,
        swept=False,
    ),
)
