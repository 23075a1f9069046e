"""What a draft engine is asked for, and how far it has come with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from suffixsvc.errors import ModelError
from suffixsvc.types import Draft, DraftSource, TokenIds
from suffixsvc_driver.workers.sequences import KvSequence

__all__ = ["DraftRequest", "Job"]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Bring a session's context up to date and draft what follows.

    Attributes:
        keep: tokens of the session's context that stay; what lies behind them is dropped.
        new_token_ids: appended after ``keep``.
        max_draft_tokens: 0 only computes the context.
        p_min: stop before a token less likely than this.
        top_k: probabilities are over so many best tokens; 0 = 10.
        suggested: what may follow; the draft is the same without. Read up to the first token that is none.
    """

    session_id: str
    keep: int
    new_token_ids: TokenIds
    max_draft_tokens: int
    p_min: float = 0.0
    top_k: int = 0
    suggested: TokenIds = ()


@dataclass(slots=True, eq=False)
class Job:
    """A request under way.

    Attributes:
        left: tokens it may still draft.
        suggested: tokens that may follow, to be looked at before the first one is drafted.
        error: what broke it; its draft is void.
    """

    context: list[int]
    sequence: KvSequence
    left: int
    p_min: float
    top_k: int
    token_ids: list[int] = field(default_factory=list)
    probs: list[float] = field(default_factory=list)
    error: ModelError | None = None
    suggested: list[int] = field(default_factory=list)

    @property
    def to_read(self) -> int:
        """Tokens of the context that must be computed before the first one can be drafted."""
        return max(0, len(self.context) - 1 - len(self.sequence.tokens))

    @property
    def last(self) -> int:
        """The token whose successor comes next."""
        return self.token_ids[-1] if self.token_ids else self.context[-1]

    @property
    def done(self) -> bool:
        return self.error is not None or (self.left <= 0 and self.to_read == 0)

    @property
    def draft(self) -> Draft:
        """A chain; ``probs`` are the draft model's own."""
        if not self.token_ids:
            return Draft.empty()
        return Draft.chain(self.token_ids, self.probs, DraftSource.DRAFT_MODEL)

    def take(self, token: int, prob: float, is_end: bool) -> None:
        """The model's next token, and how sure it is."""
        if not prob >= self.p_min:  # NaN is not
            self.left = 0
            return
        self.token_ids.append(token)
        self.probs.append(prob)
        self.left = 0 if is_end else self.left - 1
