"""Prompt lookup layer: matches in the session's own prompt and output, in process; the cheapest layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from suffixsvc.core import PromptLookup
from suffixsvc.types import Draft, FloatArray, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers import drafting_cost
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec

#: new tokens that update the lookup's statistics; earlier ones of a longer update are appended as context
_MAX_LEARNED: Final = 256


class PromptLookupLayer:
    """Drafts the tokens that followed an earlier occurrence of the last tokens. Incremental and native."""

    def __init__(self, name: str = "prompt-lookup", *, max_draft_tokens: int = 64) -> None:
        self.spec = LayerSpec(name, LayerKind.PROMPT_LOOKUP, max_draft_tokens=max_draft_tokens)
        self._lookup: PromptLookup | None = None
        self._curve: float | FloatArray = 0.0
        self._cost: VerifyCost = 0.0

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self._lookup = PromptLookup(prompt_ids)
        self.set_cost(cost)

    def set_cost(self, cost: VerifyCost) -> None:
        """See the protocol."""
        self._curve = float(cost) if np.ndim(cost) == 0 else np.asarray(cost, np.float32)  # type: ignore[arg-type]  # a number, as it has no dimension
        self._cost = drafting_cost(cost)

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """See the protocol."""
        if self._lookup is None:
            return Draft.empty()
        if new_token_ids:
            width = 1 if query.verified is None else query.verified.width
            if len(new_token_ids) > _MAX_LEARNED:
                self._lookup.append_context(new_token_ids[:-_MAX_LEARNED])
            self._lookup.append(new_token_ids[-_MAX_LEARNED:], self._cost_of(width), width)
        return self._lookup.draft(query.budget, self._cost) if query.budget else Draft.empty()

    def _cost_of(self, width: int) -> float:
        if isinstance(self._curve, float):
            return 1.0 + self._curve * (width - 1)
        return float(self._curve[min(width, len(self._curve) - 1)])

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """See the protocol."""
        self._lookup = None
