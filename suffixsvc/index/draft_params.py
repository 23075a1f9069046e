"""Validated draft parameters in native form: length limit, verify cost curve, chain or tree."""

from __future__ import annotations

from typing import NamedTuple

from suffixsvc import core
from suffixsvc.types import VerifyCost
from suffixsvc.values import BoundedCache, as_cost_curve, as_draft_length, as_tree, cost_key

__all__ = ["DraftParams", "DraftParamsCache", "native_curve"]

#: a session alternates between few parameters: some draft lengths, and steps without a draft
_CACHE_ENTRIES = 8


class DraftParams(NamedTuple):
    """Parameters of one draft, as the core takes them."""

    max_draft_tokens: int
    curve: core.Curve
    tree: bool


class DraftParamsCache:
    """Draft parameters for a caller that repeats a few of them; each is validated and converted once.

    Args:
        max_draft_tokens: upper bound to which longer requests are clamped.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._cached: BoundedCache[tuple[int, object, bool | str], DraftParams] = BoundedCache(_CACHE_ENTRIES)

    def get(self, max_draft_tokens: int, cost: VerifyCost, tree: bool | str) -> DraftParams:
        """The native form of these parameters.

        Raises:
            InvalidCostError, InvalidInputError.
        """
        cost_part = cost_key(cost)
        if cost_part is None or type(max_draft_tokens) is not int or type(tree) not in (bool, str):
            return self._convert(max_draft_tokens, cost, tree)
        key = max_draft_tokens, cost_part, tree
        return self._cached.get(key) or self._cached.put(key, self._convert(max_draft_tokens, cost, tree))

    def _convert(self, max_draft_tokens: int, cost: VerifyCost, tree: bool | str) -> DraftParams:
        width = min(as_draft_length(max_draft_tokens), self._max_draft_tokens)
        curve, mode = native_curve(cost, width), as_tree(tree)
        return DraftParams(width, curve, mode if isinstance(mode, bool) else curve.trees_pay())


def native_curve(cost: VerifyCost, max_draft_tokens: int) -> core.Curve:
    """A verify cost in native form, for drafts of at most ``max_draft_tokens``. Raises InvalidCostError."""
    return core.Curve(as_cost_curve(cost, max_draft_tokens)[: max_draft_tokens + 1])
