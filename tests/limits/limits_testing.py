"""Helpers of the tests of limits: distinct outputs, and the contents of a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from suffixsvc import SuffixCache
from suffixsvc.engine.limits.size_estimates import predicted_bytes
from suffixsvc.types import NewOutput, TokenArray
from support.engine_parts import parts_of

KIB = 1 << 10


def text(seed: int, tokens: int = 200) -> TokenArray:
    """Tokens that no other seed shares: each seed has its own vocabulary."""
    rng = np.random.default_rng(seed)
    return (seed % 1_000_000 * 1000 + rng.integers(0, 1000, tokens)).astype(np.int32)


def output(
    path: str, seed: int, tokens: int = 200, *, ttl_seconds: int = 0, corpus: bool = False
) -> NewOutput:
    return NewOutput(
        path,
        text(seed, tokens),
        (tokens,),
        np.empty(0, np.int32),
        labels={"seed": str(seed)},
        ttl_seconds=ttl_seconds,
        corpus=corpus,
    )


def add(cache: SuffixCache, path: str, seeds: Sequence[int], tokens: int = 200) -> list[int]:
    return cache.namespace(path).add_outputs([output(path, seed, tokens) for seed in seeds])


def ids(cache: SuffixCache, path: str) -> list[int]:
    """Ids of a namespace's outputs in the log."""
    return [stored.output_id for stored in parts_of(cache).store.scan(path)]


def draft_from(cache: SuffixCache, path: str, seed: int, tokens: int = 200) -> int:
    """Step through the beginning of an output as a model that writes it again; returns the drafted tokens."""
    session = cache.namespace(path).open_session([1, 2, 3])
    drafted = len(session.step(text(seed, tokens)[:16], 16, 0.01))
    session.close(commit=False)
    return drafted


def index_is_log(cache: SuffixCache) -> None:
    """Assert that every index equals a new one that is built from the log."""
    cache.check()
    with SuffixCache() as other:
        for record in parts_of(cache).store.namespaces():
            kept = [stored.output for stored in parts_of(cache).store.scan(record.path)]
            tested, rebuilt = cache.namespace(record.path), other.namespace(record.path)
            if kept:
                rebuilt.add_outputs(kept)
            for n in (1, 2, 5):
                assert np.array_equal(in_order(*tested.ngrams(n)), in_order(*rebuilt.ngrams(n)))
            stats, expected = tested.stats(), rebuilt.stats()
            assert (stats.outputs, stats.tokens) == (expected.outputs, expected.tokens)


def in_order(ngrams: TokenArray, counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """N-grams with their counts in the last column, sorted."""
    rows = np.column_stack([ngrams, counts.astype(np.int64)])
    return rows[np.lexsort(rows.T[::-1])]


#: upper bound of the bytes of one output with 200 tokens
OUTPUT = predicted_bytes(output("x", 1))
