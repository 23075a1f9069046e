"""From whatever a backend answered to what can be handed to an engine.

A backend may be remote, poisoned or broken, and an engine may read beyond its embedding table for a token
id that is none. What makes sense is kept, the rest is cut off. Nothing in here raises for what is in a draft.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.chain import clean_chain

__all__ = ["clean_draft"]

#: a backend that answers far more than it was asked for is read no further than this
_READ_AT_MOST: Final = 4096
#: parents of a chain
_CHAIN: Final = np.arange(-1, 255, dtype=np.int32)


def clean_draft(
    draft: Draft,
    budget: int,
    vocab_size: int,
    stop_before: frozenset[int] = frozenset(),
    stop_after: frozenset[int] = frozenset(),
    *,
    tree: bool,
) -> Draft:
    """At most ``budget`` tokens of a draft, all inside the vocabulary: a chain or a tree.

    A chain is cut at the first token that makes no sense or is in ``stop_before``, and after the first one in
    ``stop_after``; a tree loses such a token and its descendants, or the descendants only.
    """
    if len(draft) == 0 or budget <= 0:
        return Draft.empty()
    if not tree:
        stops = stop_before or not stop_after.isdisjoint(draft.token_ids.tolist()[:-1])
        sound = not stops and _is_sound_chain(draft, budget, vocab_size)
        return draft if sound else _chain(draft, budget, vocab_size, stop_before, stop_after)
    tokens, parents = draft.token_ids.tolist()[:_READ_AT_MOST], draft.parents.tolist()
    probs = draft.probs.tolist()
    kept: list[int] = []
    place = {-1: -1}  # where a node of the answer stands in what is kept
    siblings: set[tuple[int, int]] = set()
    for i, (token, parent, prob) in enumerate(zip(tokens, parents, probs, strict=False)):
        if len(kept) == budget:
            break
        known = parent < i and parent in place and 0 <= token < vocab_size and math.isfinite(prob)
        known = known and (parent < 0 or tokens[parent] not in stop_after)
        if known and token not in stop_before and (parent, token) not in siblings:
            siblings.add((parent, token))
            place[i] = len(kept)
            kept.append(i)
    if len(kept) == len(draft):
        return draft
    return Draft(
        draft.token_ids[kept],
        np.array([place[parents[i]] for i in kept], np.int32),
        draft.probs[kept],
        draft.sources[kept],
        draft.match_lens[kept],
    )


def _is_sound_chain(draft: Draft, budget: int, vocab_size: int) -> bool:
    """What nearly every draft is: an engine with many rows has no time to look at each token in Python."""
    n, tokens = len(draft), draft.token_ids
    return bool(
        n <= min(budget, len(_CHAIN))
        and tokens.dtype == np.int32
        and n == len(draft.probs) == len(draft.sources) == len(draft.match_lens)
        and tokens.min() >= 0
        and tokens.max() < vocab_size
        and np.array_equal(draft.parents, _CHAIN[:n])
        and np.isfinite(draft.probs).all()
    )


def _chain(
    draft: Draft, budget: int, vocab_size: int, stop_before: frozenset[int], stop_after: frozenset[int]
) -> Draft:
    path = clean_chain(draft, budget, vocab_size, DraftSource.NAMESPACE)
    n = next((i for i, token in enumerate(path.token_ids) if token in stop_before), len(path))
    n = next((i for i, token in enumerate(path.token_ids[:n], 1) if token in stop_after), n)
    if n == 0:
        return Draft.empty()
    return Draft(
        np.array(path.token_ids[:n], np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.array(path.claims[:n], np.float32),
        np.array(path.sources[:n], np.uint8),
        np.full(n, int(draft.match_lens[0]), np.int32),
    )
