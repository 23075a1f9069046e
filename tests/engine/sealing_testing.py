"""What the tests of sealing share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suffixsvc import Limits, SuffixCache
from suffixsvc.types import NewOutput

NS = "acme/m"
#: so that a handful of outputs is a batch
LIMITS = Limits(seal_tokens=60)


def open_cache(folder: Path, limits: Limits = LIMITS, **more: Any) -> SuffixCache:
    """Nothing happens by itself unless ``background`` is given."""
    return SuffixCache(folder, limits=limits, **{"background": False, **more})


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
    """Every n-gram whose last token a model wrote, counted by hand."""
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
    """Names in the folder of segments."""
    return sorted(p.name for p in (folder / "segments").iterdir()) if (folder / "segments").exists() else []


def damage(path: Path) -> None:
    """Overwrite the middle of a segment's file. In place: the map sees it."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 4096)
