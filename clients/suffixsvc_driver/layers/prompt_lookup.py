"""The cheapest layer: what the session's own prompt and output already say, in process."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.core import PromptLookup
from suffixsvc.types import Draft, VerifyCost
from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.events import Feedback

__all__ = ["PromptLookupLayer"]


class PromptLookupLayer:
    """Drafts what followed the last time these tokens stood in this session. Incremental and native."""

    def __init__(self, name: str = "prompt-lookup", *, max_draft_tokens: int = 64) -> None:
        self.spec = LayerSpec(name, LayerKind.PROMPT_LOOKUP, max_draft_tokens=max_draft_tokens)
        self._lookup: PromptLookup | None = None
        self._cost: VerifyCost = 0.0

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self._lookup = PromptLookup(prompt_ids)
        # the driver cuts by the curve itself, with what it learned about this layer
        self._cost = cost if isinstance(cost, float) else 0.0

    def draft(self, new_token_ids: Sequence[int], budget: int, verified: Feedback | None) -> Draft:
        if self._lookup is None:
            return Draft.empty()
        if new_token_ids:
            self._lookup.append(new_token_ids)
        return self._lookup.draft(budget, self._cost) if budget else Draft.empty()

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        self._lookup = None
