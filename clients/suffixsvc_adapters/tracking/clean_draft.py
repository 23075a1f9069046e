"""Validation of a backend's draft before an engine gets it.

A backend may be remote, hostile or broken, and an engine may read beyond its embedding table for an invalid
token id. The valid part of a draft is returned, the rest is cut off. No content of a draft raises an error.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.drafts.chain import valid_draft

#: tokens of a tree that are examined; a backend may return far more than was requested
_MAX_EXAMINED: Final = 4096
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
    """Return at most ``budget`` tokens of a draft, all inside the vocabulary: a chain or a tree.

    A chain is cut at the first token that is invalid or in ``stop_before``, and after the first one in
    ``stop_after``; a tree loses such a token and its descendants, or the descendants only.
    """
    if len(draft) == 0 or budget <= 0:
        return Draft.empty()
    if not tree:
        stops = stop_before or not stop_after.isdisjoint(draft.token_ids.tolist()[:-1])
        valid = not stops and _is_valid_chain(draft, budget, vocab_size)
        return draft if valid else _cut_chain(draft, budget, vocab_size, stop_before, stop_after)
    tokens, parents = draft.token_ids.tolist()[:_MAX_EXAMINED], draft.parents.tolist()
    probs = draft.probs.tolist()
    kept: list[int] = []
    position_of = {-1: -1}  # node of the draft -> its position in the result
    siblings: set[tuple[int, int]] = set()
    for i, (token, parent, prob) in enumerate(zip(tokens, parents, probs, strict=False)):
        if len(kept) == budget:
            break
        valid = parent < i and parent in position_of and 0 <= token < vocab_size and math.isfinite(prob)
        valid = valid and (parent < 0 or tokens[parent] not in stop_after)
        if valid and token not in stop_before and (parent, token) not in siblings:
            siblings.add((parent, token))
            position_of[i] = len(kept)
            kept.append(i)
    if len(kept) == len(draft):
        return draft
    return draft.take(kept, np.array([position_of[parents[i]] for i in kept], np.int32))


def _is_valid_chain(draft: Draft, budget: int, vocab_size: int) -> bool:
    """Return whether a draft needs no change. Vectorised, since nearly all drafts pass."""
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


def _cut_chain(
    draft: Draft, budget: int, vocab_size: int, stop_before: frozenset[int], stop_after: frozenset[int]
) -> Draft:
    path = valid_draft(draft, budget, vocab_size, DraftSource.NAMESPACE)
    n = next((i for i, token in enumerate(path.token_ids) if token in stop_before), len(path))
    n = next((i for i, token in enumerate(path.token_ids[:n], 1) if token in stop_after), n)
    if n == 0:
        return Draft.empty()
    return Draft(
        np.array(path.token_ids[:n], np.int32),
        np.arange(-1, n - 1, dtype=np.int32),
        np.array(path.raw_probs[:n], np.float32),
        np.array(path.sources[:n], np.uint8),
        np.full(n, int(draft.match_lens[0]), np.int32),
    )
