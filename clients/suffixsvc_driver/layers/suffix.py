"""The suffix layer: what everyone in the namespace wrote, through any backend session."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.types import BackendSession, Draft, VerifyCost
from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.events import Feedback
from suffixsvc_driver.layers import drafting_price

__all__ = ["SuffixLayer"]


class SuffixLayer:
    """Asks a session of the embedded engine or of a client: one message a step that appends, gives
    feedback and drafts. The session is the caller's: it must hold exactly the prompt of the generation
    when that begins, and it is the caller's to close.

    A client brings a timer of its own; a session that raises instead leaves its tokens pending. They go
    out again with the next step, at their absolute position, so a retry cannot append twice.

    Args:
        session: opened with the prompt's tokens.
        seconds_per_ask: a first guess of what a step costs; measured afterwards.
        tree: ask for trees; worth it where the target takes them (``max_branches`` above 1). Of a tree that
            it cannot take the most probable path is used.
    """

    def __init__(
        self,
        session: BackendSession,
        name: str = "suffix",
        *,
        seconds_per_ask: float = 0.0,
        max_draft_tokens: int = 64,
        tree: bool = False,
    ) -> None:
        self._tree = tree
        self.spec = LayerSpec(
            name, LayerKind.SUFFIX, seconds_per_ask=seconds_per_ask, max_draft_tokens=max_draft_tokens
        )
        self.session = session
        self._cost: VerifyCost | None = None
        self._told = 0
        self._pending: list[int] = []

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self.reprice(cost)
        self._told = len(prompt_ids)
        self._pending = []

    def reprice(self, cost: VerifyCost) -> None:
        self._cost = drafting_price(cost)

    def draft(self, new_token_ids: Sequence[int], budget: int, verified: Feedback | None) -> Draft:
        if self._cost is None:
            return Draft.empty()
        self._pending.extend(new_token_ids)
        draft = self.session.step(
            self._pending,
            max_draft_tokens=budget,
            verify_cost=self._cost,
            tree=self._tree,
            at=self._told,
            verified=verified,
        )
        self._told += len(self._pending)
        self._pending = []
        return draft

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        if new_token_ids or self._pending:
            self.draft(new_token_ids, 0, verified)
