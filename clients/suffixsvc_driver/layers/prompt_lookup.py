"""The cheapest layer: what the session's own prompt and output already say, in process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from suffixsvc.core import PromptLookup
from suffixsvc.types import Draft, FloatArray, VerifyCost
from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.events import Feedback
from suffixsvc_driver.layers import drafting_price

__all__ = ["PromptLookupLayer"]

#: tokens that a question after a pause learns from; of more, the earlier ones are only text
_LEARNED_AT_MOST: Final = 256


class PromptLookupLayer:
    """Drafts what followed the last time these tokens stood in this session. Incremental and native."""

    def __init__(self, name: str = "prompt-lookup", *, max_draft_tokens: int = 64) -> None:
        self.spec = LayerSpec(name, LayerKind.PROMPT_LOOKUP, max_draft_tokens=max_draft_tokens)
        self._lookup: PromptLookup | None = None
        self._curve: float | FloatArray = 0.0
        self._price: VerifyCost = 0.0

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self._lookup = PromptLookup(prompt_ids)
        self.reprice(cost)

    def reprice(self, cost: VerifyCost) -> None:
        self._curve = float(cost) if np.ndim(cost) == 0 else np.asarray(cost, np.float32)  # type: ignore[arg-type]  # a number, as it has no dimension
        self._price = drafting_price(cost)

    def draft(self, new_token_ids: Sequence[int], budget: int, verified: Feedback | None) -> Draft:
        if self._lookup is None:
            return Draft.empty()
        if new_token_ids:
            width = 1 if verified is None else verified.width
            if len(new_token_ids) > _LEARNED_AT_MOST:
                self._lookup.append_context(new_token_ids[:-_LEARNED_AT_MOST])
            self._lookup.append(new_token_ids[-_LEARNED_AT_MOST:], self._cost_of(width), width)
        return self._lookup.draft(budget, self._price) if budget else Draft.empty()

    def _cost_of(self, width: int) -> float:
        if isinstance(self._curve, float):
            return 1.0 + self._curve * (width - 1)
        return float(self._curve[min(width, len(self._curve) - 1)])

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        self._lookup = None
