"""Cuts what a grammar forbids off a layer's draft, before the driver considers it.

A forbidden token can never be the target's choice, so sending it, or anything behind it, is paid for
nothing. Layers may answer anything: what is no draft at all is left as it is, for
:func:`suffixsvc_driver.chain.clean_chain` to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from suffixsvc.types import Draft

__all__ = ["Permit", "cut_forbidden"]

#: drafted tokens -> how many of them, one behind the other, may come next
Permit = Callable[[Sequence[int]], int]


def cut_forbidden(draft: Any, budget: int, vocab_size: int, permit: Permit) -> tuple[Any, int]:
    """The draft without forbidden tokens and what hangs on them, and how many tokens that were.

    Args:
        draft: a layer's answer, a chain or a tree; anything may be in it.
        budget: tokens the layer was asked for. Of a longer chain, what is behind them is not looked at,
            since nobody will; of a larger tree it is cut off.
        vocab_size: ids at or above it are not the grammar's business.
    """
    read = _read(draft)
    if read is None or budget < 1:
        return draft, 0
    tokens, parents = read
    if all(parent == i - 1 for i, parent in enumerate(parents)):
        known = _known(tokens[:budget], vocab_size)
        count = permit(known)
        if count == len(known):
            return draft, 0
        return _only(draft, parents, list(range(count))), len(tokens) - count
    keep = _permitted_nodes(tokens[:budget], parents, vocab_size, permit)
    return (draft, 0) if len(keep) == len(tokens) else (_only(draft, parents, keep), len(tokens) - len(keep))


def _read(draft: Any) -> tuple[list[Any], list[Any]] | None:
    """Tokens and parents of what :func:`clean_chain` would read at all."""
    try:
        columns = [getattr(draft, name).tolist() for name in ("token_ids", "parents", "probs", "sources")]
        same = len({len(column) for column in columns}) == 1
    except (AttributeError, TypeError):
        return None
    return (columns[0], columns[1]) if same else None


def _known(tokens: list[Any], vocab_size: int) -> list[int]:
    """Up to the first one that is no token of the target."""
    for count, token in enumerate(tokens):
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            return tokens[:count]
    return tokens


def _permitted_nodes(tokens: list[Any], parents: list[Any], vocab_size: int, permit: Permit) -> list[int]:
    """Nodes of a tree whose path from the root is permitted, in their order. A path that ends is asked about
    once, from the root; its beginnings are known with it."""
    paths: list[list[int]] = []
    for i in range(len(tokens)):
        parent = parents[i]
        rooted = isinstance(parent, int) and -1 <= parent < i
        above = paths[parent] if rooted and parent >= 0 else []
        # a node whose parent is none, or is cut off itself, has no path
        paths.append([*above, i] if rooted and (parent < 0 or above) else [])
    inner = {parents[i] for i in range(len(tokens)) if paths[i]}
    keep: set[int] = set()
    for i, path in enumerate(paths):
        if path and i not in inner:
            known = _known([tokens[node] for node in path], vocab_size)
            count = permit(known)
            # a token that is none is left for others to refuse
            keep.update(path if count == len(known) else path[:count])
    return sorted(keep)


def _only(draft: Any, parents: list[Any], keep: list[int]) -> Draft:
    """These nodes of a draft; the parent of each is among them."""
    place = {-1: -1, **{node: i for i, node in enumerate(keep)}}
    lengths = getattr(draft, "match_lens", None)
    return Draft(
        np.asarray(draft.token_ids)[keep],
        np.array([place[parents[node]] for node in keep], np.int32),
        np.asarray(draft.probs)[keep],
        np.asarray(draft.sources)[keep],
        np.zeros(len(keep), np.int32) if lengths is None else np.asarray(lengths)[keep],
    )
