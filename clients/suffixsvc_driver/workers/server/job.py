"""Requests to a draft engine, and their progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffixsvc.errors import ModelError
from suffixsvc.types import Draft, DraftSource, TokenIds
from suffixsvc_driver.targets.slots import Slot


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request to update a session's context and draft a continuation.

    Attributes:
        keep: tokens of the session's context that are kept; later ones are dropped.
        new_token_ids: appended after ``keep``.
        max_draft_tokens: 0 only computes the context.
        p_min: stop before a token less likely than this.
        top_k: probabilities are normalised over this many best tokens; 0 = 10.
        suggested: tokens that may follow, up to the first invalid id; they do not change the draft.
        principal: owner of the session; KV is reused between sessions of one principal only.
        scope: of the client that sends it; equal principals of two scopes are unrelated.
    """

    session_id: str
    keep: int
    new_token_ids: TokenIds
    max_draft_tokens: int
    p_min: float = 0.0
    top_k: int = 0
    suggested: TokenIds = ()
    principal: str = ""
    scope: str = ""

    @property
    def owner(self) -> str:
        """Whose KV it may reuse."""
        return self.scope + self.principal


@dataclass(slots=True, eq=False)
class Job:
    """A running request.

    Attributes:
        left: tokens that it may still draft.
        suggested: tokens that may follow, to be verified before the first one is drafted.
        error: the failure that ended it; its draft is void.
    """

    context: list[int]
    sequence: Slot
    left: int
    p_min: float
    top_k: int
    token_ids: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    error: ModelError | None = None
    suggested: list[int] = field(default_factory=list)

    @property
    def to_prefill(self) -> int:
        """Context tokens that must be computed before the first token can be drafted."""
        return max(0, len(self.context) - 1 - len(self.sequence.tokens))

    @property
    def to_compute(self) -> int:
        """Tokens to prefill, and suggested ones to verify."""
        return self.to_prefill + len(self.suggested)

    @property
    def last(self) -> int:
        """The token whose successor is drafted next."""
        return self.token_ids[-1] if self.token_ids else self.context[-1]

    @property
    def done(self) -> bool:
        """Whether nothing is left to compute."""
        return self.error is not None or (self.left <= 0 and self.to_prefill == 0)

    @property
    def draft(self) -> Draft:
        """The drafted chain, with the draft model's own probabilities."""
        if not self.token_ids:
            return Draft.empty()
        return Draft.chain(self.token_ids, self.probs, DraftSource.DRAFT_MODEL)

    def take(self, token: int, prob: float, is_end: bool) -> None:
        """Append the model's next token, or end the draft if its probability is below ``p_min``."""
        if not prob >= self.p_min:  # also true for NaN
            self.left = 0
            return
        self.token_ids.append(token)
        self.probs.append(prob)
        self.left = 0 if is_end else self.left - 1
