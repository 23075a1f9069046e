"""Validation of a backend's draft before an engine gets it.

A backend may be remote, hostile or broken, and an engine may read beyond its embedding table for an invalid
token id. The valid part of a draft is returned, the rest is cut off. No content of a draft raises an error.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.drafts.chain import valid_draft

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
    stops = stop_before or not stop_after.isdisjoint(draft.token_ids.tolist()[:-1])
    if not tree and not stops and _is_valid_chain(draft, budget, vocab_size):
        return draft
    valid = valid_draft(draft, len(draft), vocab_size, DraftSource.NAMESPACE, stop_after, trees=tree)
    parents = valid.parents or range(-1, len(valid.token_ids) - 1)
    position_of = {-1: -1}  # token of the valid draft -> its position in the result
    for i, (token, parent) in enumerate(zip(valid.token_ids, parents, strict=True)):
        if len(position_of) <= budget and token not in stop_before and parent in position_of:
            position_of[i] = len(position_of) - 1
    kept = list(position_of)[1:]
    match_len = int(draft.match_lens[0]) if len(draft.match_lens) else 0
    return Draft(
        np.array([valid.token_ids[i] for i in kept], np.int32),
        np.array([position_of[parents[i]] for i in kept], np.int32),
        np.array([valid.raw_probs[i] for i in kept], np.float32),
        np.array([valid.sources[i] for i in kept], np.uint8),
        np.full(len(kept), match_len, np.int32),
    )


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
