"""Helpers of the tests of limits: distinct outputs, and the contents of a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
            namespace = other.namespace(record.path)
            if kept:
                namespace.add_outputs(kept)
            for n in (1, 2, 5):
                mine, theirs = cache.namespace(record.path).ngrams(n), namespace.ngrams(n)
                assert sorted(zip(mine[0].tolist(), mine[1].tolist(), strict=True)) == sorted(
                    zip(theirs[0].tolist(), theirs[1].tolist(), strict=True)
                )
            stats, expected = cache.namespace(record.path).stats(), namespace.stats()
            assert (stats.outputs, stats.tokens) == (expected.outputs, expected.tokens)


#: upper bound of the bytes of one output with 200 tokens
OUTPUT = predicted_bytes(output("x", 1))
