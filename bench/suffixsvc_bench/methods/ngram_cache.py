"""llama.cpp's n-gram cache lookup: three tables of what followed the last 1 to 4 tokens.

The rules of ``llama-lookup`` and ``--spec-type ngram-cache``: the *context* cache counts the call's own text,
the *dynamic* cache the calls before (the context cache is merged into it when a call ends), the *static*
cache a corpus counted beforehand, 2-grams only. A token is drafted from the first that is sure enough:

1. context, longest n-gram first, with lax thresholds;
2. dynamic, longest first, strict thresholds;
3. static, with the lax thresholds of 2-grams.

In 1 and 2 a candidate's count is weighed by 100 times its count in the static entry of the last two tokens,
by 1 where that lacks it; the thresholds look at unweighted counts. The draft goes on behind each token until
none is sure enough or K is reached.

Without a corpus there is no static cache: a replay begins with none, as a user does who has not built one.
With calls that warm the caches (``--train``, ``--train-log``) a second method builds one from their answers,
as ``llama-lookup-create`` does from a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from suffixsvc.types import Draft, DraftSource, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings, guess

__all__ = ["SPECS", "NgramCache", "NgramCounts"]

MAX_N: Final = 4
STATIC_N: Final = 2
#: by n - 1: the least occurrences of an n-gram, and the least percent the winner has of them
LAX: Final = ((2, 66), (2, 50), (1, 50), (1, 50))
STRICT: Final = ((4, 75), (3, 66), (2, 66), (2, 66))

#: an n-gram: its tokens, oldest first
Ngram = tuple[int, ...]
_NOTHING: Final[Mapping[int, int]] = {}


class NgramCounts:
    """What followed every n-gram of 1 to 4 tokens, and how often."""

    def __init__(self) -> None:
        self._after: dict[Ngram, dict[int, int]] = {}

    def extend(self, text: list[int], first: int) -> None:
        """Count the tokens from position ``first`` on, each behind the n-grams that end before it."""
        after = self._after
        for i in range(max(first, 1), len(text)):
            token = text[i]
            for n in range(1, min(MAX_N, i) + 1):
                counts = after.setdefault(tuple(text[i - n : i]), {})
                counts[token] = counts.get(token, 0) + 1

    def merge(self, other: NgramCounts) -> None:
        """Add another's counts; ``other`` must not be used any more."""
        after = self._after
        for ngram, counts in other._after.items():
            mine = after.get(ngram)
            if mine is None:
                after[ngram] = counts
                continue
            for token, count in counts.items():
                mine[token] = mine.get(token, 0) + count

    def after(self, ngram: Ngram) -> Mapping[int, int]:
        """Counts of the tokens that followed; empty where it never stood."""
        return self._after.get(ngram, _NOTHING)

    def memory_bytes(self) -> int:
        """As llama.cpp's file of it: 20 bytes an n-gram and 8 a token behind it."""
        return sum(20 + 8 * len(counts) for counts in self._after.values())


class NgramCache(Method):
    """The rules above. Of equal candidates the one counted first wins (llama.cpp: whichever its hash map
    lists first)."""

    def __init__(self, settings: Settings, static: NgramCounts | None = None) -> None:
        self._k = settings.max_draft_tokens
        self._static = NgramCounts() if static is None else static
        self._dynamic = NgramCounts()
        self._context = NgramCounts()
        self._text: list[int] = []

    def study(self, texts: Iterable[TokenArray]) -> None:
        for text in texts:
            self._static.extend(text.tolist(), 0)

    def begin(self, prompt: TokenArray, agent: str) -> None:
        self._text = prompt.tolist()
        self._context = NgramCounts()
        self._context.extend(self._text, 0)

    def draft(self) -> Draft:
        if len(self._text) < STATIC_N:
            return Draft.empty()
        tail = self._text[-MAX_N:]
        drafted: list[int] = []
        while len(drafted) < self._k:
            token = self._next(tail)
            if token is None:
                break
            drafted.append(token)
            tail = [*tail[-MAX_N + 1 :], token]
        return guess(drafted, DraftSource.NONE)

    def _next(self, tail: list[int]) -> int | None:
        prior = self._static.after(tuple(tail[-STATIC_N:]))
        for cache, thresholds in ((self._context, LAX), (self._dynamic, STRICT)):
            for n in range(min(MAX_N, len(tail)), 0, -1):
                token = _sure(cache.after(tuple(tail[-n:])), prior, thresholds[n - 1])
                if token is not None:
                    return token
        return _sure(prior, _NOTHING, LAX[STATIC_N - 1])

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        known = len(self._text)
        self._text += token_ids.tolist()
        self._context.extend(self._text, known)

    def end(self) -> None:
        self._dynamic.merge(self._context)
        self._context = NgramCounts()
        self._text = []

    def memory_bytes(self) -> int:
        return self._dynamic.memory_bytes() + self._static.memory_bytes()


def _sure(counts: Mapping[int, int], prior: Mapping[int, int], threshold: tuple[int, int]) -> int | None:
    """The best token of an n-gram's continuations, if they are many and it has enough of them."""
    if not counts:
        return None
    best = max(counts, key=lambda token: counts[token] * (100 * prior[token] if token in prior else 1))
    least, percent = threshold
    total = sum(counts.values())
    return best if total >= least and 100 * counts[best] >= percent * total else None


SPECS = (
    MethodSpec(
        "ngram-cache",
        "llama.cpp ngram-cache",
        "tables of what followed the last 1 to 4 tokens: of this call, then of the calls before",
        8,
        NgramCache,
        memory="the dynamic cache as llama.cpp's file",
    ),
    MethodSpec(
        "ngram-cache-static",
        "llama.cpp ngram-cache, static",
        "the same with a static cache, counted beforehand from the answers that warm the others",
        8,
        NgramCache,
        memory="the dynamic and the static cache as llama.cpp's files",
        studies=True,
        swept=False,
    ),
)
