"""On what terms to draft: how long, at what cost, in which shape; checked, as the core takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from suffixsvc import core
from suffixsvc.errors import InvalidInputError
from suffixsvc.types import VerifyCost
from suffixsvc.values import Few, as_cost_curve, as_tree, cost_key

__all__ = ["Terms", "TermsMemo"]

#: with "auto", trees up to this cost of a drafted token: above it branches rarely pay for themselves
_AUTO_TREE_COST = 0.1
#: a caller may take turns: drafts of some lengths, tokens without a draft
_MOST = 8


class Terms(NamedTuple):
    """What a draft must keep to."""

    max_draft_tokens: int
    curve: core.Curve
    tree: bool


class TermsMemo:
    """Terms for a caller that mostly asks for the same few: each worked out once.

    Args:
        longest: no draft is longer, whatever is asked for.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._known: Few[tuple[int, object, bool | str], Terms] = Few(_MOST)

    def of(self, max_draft_tokens: int, cost: VerifyCost, tree: bool | str) -> Terms:
        """Raises InvalidCostError, InvalidInputError."""
        key = cost_key(cost)
        if key is None or type(max_draft_tokens) is not int or type(tree) not in (bool, str):
            return self._terms(max_draft_tokens, cost, tree)
        asked = max_draft_tokens, key, tree
        known = self._known.get(asked)
        if known is None:
            known = self._known.put(asked, self._terms(max_draft_tokens, cost, tree))
        return known

    def _terms(self, max_draft_tokens: int, cost: VerifyCost, tree: bool | str) -> Terms:
        width = min(_length(max_draft_tokens), self._longest)
        costs = as_cost_curve(cost, width)[: width + 1]
        return Terms(width, core.Curve(costs), _shape(as_tree(tree), costs))


def _length(max_draft_tokens: int) -> int:
    if (
        isinstance(max_draft_tokens, bool)
        or not isinstance(max_draft_tokens, (int, np.integer))
        or max_draft_tokens < 0
    ):
        raise InvalidInputError(
            "max_draft_tokens makes no sense", expected="an int >= 0", got=repr(max_draft_tokens)[:80]
        )
    return int(max_draft_tokens)


def _shape(tree: bool | str, costs: npt.NDArray[np.float64]) -> bool:
    if isinstance(tree, bool):
        return tree
    if len(costs) < 2:
        return False
    return float((costs[1:] - costs[0]).min() / len(costs[1:])) <= _AUTO_TREE_COST
