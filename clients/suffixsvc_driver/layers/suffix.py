"""Suffix layer: drafts from the outputs of a namespace, through a backend session."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.types import BackendSession, Draft, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers import drafting_cost
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec


class SuffixLayer:
    """Queries a session of the embedded engine or of a client: one message per step appends tokens, sends
    feedback and returns a draft. The caller owns the session, which must hold exactly the prompt when the
    generation begins.

    A client has its own timeout; if the session raises instead, its tokens stay pending. They are sent again
    with the next step, at their absolute position, so that a retry cannot append them twice.

    Args:
        session: opened with the prompt's tokens.
        seconds_per_query: initial estimate of the time of a query; measured afterwards.
        tree: request trees, which is useful if the target accepts them (``max_branches`` above 1); otherwise
            the most probable path of a tree is used.
        private: append what is emitted as context, from which no other session drafts and which is never
            stored; the namespace does not learn from it either. Takes two messages per step.
    """

    def __init__(
        self,
        session: BackendSession,
        name: str = "suffix",
        *,
        seconds_per_query: float = 0.0,
        max_draft_tokens: int = 64,
        tree: bool = False,
        private: bool = False,
    ) -> None:
        self._tree, self._private = tree, private
        self.spec = LayerSpec(
            name, LayerKind.SUFFIX, seconds_per_query=seconds_per_query, max_draft_tokens=max_draft_tokens
        )
        self.session = session
        self._cost: VerifyCost | None = None
        self._sent = 0
        self._pending: list[int] = []

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        """See the protocol."""
        self.set_cost(cost)
        self._sent = len(prompt_ids)
        self._pending = []

    def set_cost(self, cost: VerifyCost) -> None:
        """See the protocol."""
        self._cost = drafting_cost(cost)

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        """See the protocol."""
        if self._cost is None:
            return Draft.empty()
        self._pending.extend(new_token_ids)
        verified = query.verified
        if self._private:
            # context has no position: an append that raises has appended nothing
            self.session.append_context(self._pending)
            self._accept_pending()
            verified = None  # feedback on a draft ends with the context that follows it
            if not query.budget:
                return Draft.empty()
        draft = self.session.step(
            self._pending,
            max_draft_tokens=query.budget,
            verify_cost=self._cost,
            tree=self._tree,
            at=self._sent,
            verified=verified,
        )
        self._accept_pending()
        return draft

    def _accept_pending(self) -> None:
        self._sent += len(self._pending)
        self._pending = []

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        """See the protocol."""
        if new_token_ids or self._pending:
            self.draft(new_token_ids, QueryLayer(self.spec.name, 0, verified))
