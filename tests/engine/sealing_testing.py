"""Helpers of the tests of sealing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from suffixsvc import Limits, SuffixCache
from suffixsvc.runtime.sync_points import SyncPoint, with_sync_points
from suffixsvc.types import NewOutput
from support.engine_parts import parts_of

NS = "acme/m"
#: a few outputs fill a batch
LIMITS = Limits(seal_tokens=60)


def open_cache(
    folder: Path, limits: Limits = LIMITS, *, sync_point: SyncPoint | None = None, **more: Any
) -> SuffixCache:
    """A cache without a background thread unless ``background`` is given."""
    kind = SuffixCache if sync_point is None else with_sync_points(SuffixCache, sync_point)
    return kind(folder, limits=limits, **{"background": False, **more})


def output(
    tokens: Sequence[int],
    tail: Sequence[int] = (),
    segments: Sequence[int] | None = None,
    namespace: str = NS,
    ttl_seconds: int = 0,
) -> NewOutput:
    return NewOutput(
        namespace,
        np.asarray(tokens, np.int32),
        tuple(segments or (len(tokens),)),
        np.asarray(tail, np.int32),
        ttl_seconds=ttl_seconds,
    )


def ngram_oracle(outputs: Sequence[NewOutput], n: int) -> Counter[tuple[int, ...]]:
    """Every n-gram whose last token a model wrote, counted without the index."""
    found: Counter[tuple[int, ...]] = Counter()
    for one in outputs:
        start, tail = 0, one.prompt_tail.tolist()
        for length in one.segment_lens:
            text = tail + one.token_ids[start : start + length].tolist()
            for end in range(max(len(tail), n - 1), len(text)):
                found[tuple(text[end - n + 1 : end + 1])] += 1
            start, tail = start + length, []
    return found


def ngrams(cache: SuffixCache, n: int, namespace: str = NS) -> dict[tuple[int, ...], int]:
    tokens, counts = cache.namespace(namespace).ngrams(n)
    assert len({tuple(row) for row in tokens.tolist()}) == len(tokens), "an n-gram is listed twice"
    return dict(zip(map(tuple, tokens.tolist()), counts.tolist(), strict=True))


def files(folder: Path) -> list[str]:
    """Names of the files in the folder of segments."""
    return sorted(p.name for p in (folder / "segments").iterdir()) if (folder / "segments").exists() else []


def damage(path: Path) -> None:
    """Overwrite the middle of a segment file in place, so that the mapping changes."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)


SQL = list(range(100, 130))
#: three seals of the outputs of `fill_random`
BATCH = Limits(seal_tokens=100)


def fill(cache: SuffixCache, count: int, length: int = 20) -> list[int]:
    """Add similar outputs; returns their ids."""
    return cache.namespace(NS).add_outputs(
        [output([i, i + 1, *SQL[: length - 2]], tail=[7, 8, 9]) for i in range(count)]
    )


def fill_random(cache: SuffixCache, count: int = 12, length: int = 30) -> list[int]:
    """Add random outputs over 50 tokens; returns their ids."""
    random = Random(count)
    return cache.namespace(NS).add_outputs(
        [output([random.randrange(50) for _ in range(length)], tail=[1, 2]) for _ in range(count)]
    )


def three_sealed(folder: Path) -> list[str]:
    """Make a folder with twelve outputs in three segments; returns the names of the files."""
    with open_cache(folder, BATCH) as cache:
        fill_random(cache)
        cache.seal()
        names = files(folder)
    assert len(names) == 3
    return names


def all_there(cache: SuffixCache, count: int) -> None:
    """Assert that the cache is consistent and has so many outputs."""
    cache.check()
    stored = [stored.output for stored in parts_of(cache).store.scan(NS)]
    assert len(stored) == cache.stats().outputs == count
    assert ngrams(cache, 2) == ngram_oracle(stored, 2)
