"""A draft as the tree of fixed width that engines with tree attention verify."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from suffixsvc.types import Draft

__all__ = ["PADDING", "tree_and_mask"]

#: what fills up: children of the root. Where the target really wants this token, it is as good as any
PADDING = 0


def tree_and_mask(
    last_token: int, draft: Draft, width: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tokens and ancestors, breadth first, of a tree whose root is the last real token.

        draft  a ─ b        tokens  last a c b pad
               └ c          mask[i, j] = 1 where j is i itself or an ancestor of it: row of b = 1 1 0 1 0

    Args:
        draft: a tree in topological order of at most ``width - 1`` tokens; more are left out.
        width: what is verified, whatever was drafted.

    Returns:
        int64[width] and int64[width, width].
    """
    tokens = np.full(width, PADDING, np.int64)
    mask = np.zeros((width, width), np.int64)
    tokens[0] = last_token
    mask[:, 0] = 1
    np.fill_diagonal(mask, 1)
    parents = draft.parents.tolist()[: width - 1]
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    place = {-1: 0}
    for at, node in enumerate(sorted(range(len(parents)), key=depth.__getitem__), start=1):
        place[node] = at
        tokens[at] = draft.token_ids[node]
        mask[at] |= mask[place[parents[node]]]
    return tokens, mask
