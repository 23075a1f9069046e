"""Filter that removes tokens forbidden by a grammar from a layer's draft, before the driver considers it.

The target never samples a forbidden token, so verifying it or a token after it is wasted. An answer that is
not a draft is returned unchanged; :func:`suffixsvc_driver.drafts.chain.valid_draft` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suffixsvc.types import Draft
from suffixsvc_driver.drafts.chain import columns_of
from suffixsvc_driver.drafts.tree import is_chain

#: drafted tokens -> length of their longest prefix that the grammar permits
Permit = Callable[[Sequence[int]], int]


def cut_forbidden(draft: Any, budget: int, vocab_size: int, permit: Permit) -> tuple[Any, int]:
    """Return the draft without forbidden tokens and their descendants, and the number of removed tokens.

    Args:
        draft: a layer's answer, a chain or a tree; any object.
        budget: queried tokens. Tokens beyond it are not checked in a chain, and removed from a tree.
        vocab_size: ids at or above it are not checked.
        permit: the grammar.
    """
    columns = columns_of(draft)
    if columns is None or budget < 1:
        return draft, 0
    tokens, parents, _, _ = columns
    if is_chain(parents):
        known = _known(tokens[:budget], vocab_size)
        count = permit(known)
        if count == len(known):
            return draft, 0
        return _only(draft, parents, list(range(count))), len(tokens) - count
    keep = _permitted_nodes(tokens[:budget], parents, vocab_size, permit)
    return (draft, 0) if len(keep) == len(tokens) else (_only(draft, parents, keep), len(tokens) - len(keep))


def _known(tokens: list[Any], vocab_size: int) -> list[int]:
    """Return the tokens before the first one outside the vocabulary."""
    for count, token in enumerate(tokens):
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            return tokens[:count]
    return tokens


def _permitted_nodes(tokens: list[Any], parents: list[Any], vocab_size: int, permit: Permit) -> list[int]:
    """Return the nodes of a tree whose path from the root is permitted, in order.

    Only paths to leaves are checked; their prefixes are covered by them.
    """
    paths: list[list[int]] = []
    for i in range(len(tokens)):
        parent = parents[i]
        rooted = isinstance(parent, int) and -1 <= parent < i
        above = paths[parent] if rooted and parent >= 0 else []
        # a node with an invalid or removed parent has no path
        paths.append([*above, i] if rooted and (parent < 0 or above) else [])
    inner = {parents[i] for i in range(len(tokens)) if paths[i]}
    keep: set[int] = set()
    for i, path in enumerate(paths):
        if path and i not in inner:
            known = _known([tokens[node] for node in path], vocab_size)
            count = permit(known)
            # tokens outside the vocabulary stay; valid_draft refuses them
            keep.update(path if count == len(known) else path[:count])
    return sorted(keep)


def _only(draft: Any, parents: list[Any], keep: list[int]) -> Draft:
    """Return a draft of the nodes ``keep``, a set closed under parents."""
    place = {-1: -1, **{node: i for i, node in enumerate(keep)}}
    lengths = getattr(draft, "match_lens", None)
    return Draft(
        np.asarray(draft.token_ids)[keep],
        np.array([place[parents[node]] for node in keep], np.int32),
        np.asarray(draft.probs)[keep],
        np.asarray(draft.sources)[keep],
        np.zeros(len(keep), np.int32) if lengths is None else np.asarray(lengths)[keep],
    )
