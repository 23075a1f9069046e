"""Encoding of a draft as the tree of fixed width that engines with tree attention verify."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from suffixsvc.types import Draft
from suffixsvc_driver.drafts.tree import depths_of

#: padding tokens are children of the root; if the target chooses this token, it is accepted like any other
PADDING = 0


def tree_and_mask(
    last_token: int, draft: Draft, width: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return tokens and ancestor mask, breadth first, of a tree whose root is the last real token.

        draft  a ─ b        tokens  last a c b pad
               └ c          mask[i, j] = 1 if j is i or an ancestor of i: row of b = 1 1 0 1 0

    Args:
        draft: a tree in topological order; tokens after the first ``width - 1`` are left out.
        width: tokens that the engine verifies, whatever was drafted.

    Returns:
        int64[width] and int64[width, width].
    """
    tokens = np.full(width, PADDING, np.int64)
    mask = np.zeros((width, width), np.int64)
    tokens[0] = last_token
    mask[:, 0] = 1
    np.fill_diagonal(mask, 1)
    parents = draft.parents.tolist()[: width - 1]
    depth = depths_of(parents)
    row_of = {-1: 0}
    for row, node in enumerate(sorted(range(len(parents)), key=depth.__getitem__), start=1):
        row_of[node] = row
        tokens[row] = draft.token_ids[node]
        mask[row] |= mask[row_of[parents[node]]]
    return tokens, mask
