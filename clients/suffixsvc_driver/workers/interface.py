"""What the driver needs of a draft worker, whatever it is: ours over gRPC, a llama-server, a pool of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from suffixsvc.errors import SuffixError
from suffixsvc.types import Draft
from suffixsvc_driver.vocabulary import Vocabulary

__all__ = ["DraftWorker", "DraftingSession", "WorkerDescription"]


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a worker says about itself.

    Attributes:
        model: a file name or an alias.
        context_size: tokens that fit; 0 = not told.
        seconds_per_token: measured by the worker at its start, or on a few tokens when it was first met.
        parameters: 0 = not told.
        instance_id: another one after a restart (ours), or with another model (llama-server).
        vocabulary: without texts.
        compared: what of the vocabulary was compared with the target's; empty before that.
        seconds_per_read_token: of text it has not seen, many tokens at once; 0 = not told.
        checks: it looks at so many of the tokens that are suggested to it.
    """

    model: str
    context_size: int
    seconds_per_token: float
    parameters: int
    instance_id: str
    vocabulary: Vocabulary
    compared: str = ""
    seconds_per_read_token: float = 0.0
    checks: int = 0


class DraftingSession(Protocol):
    """One context on a worker: kept in step with a text, asked for drafts, each within a time.

    Anything that goes wrong - no answer in time, busy, restarted, gone, nonsense - is an empty draft in time,
    counted; the text is caught up later. Used by one thread at a time.
    """

    @property
    def late(self) -> int:
        """Questions without a draft because the answer took too long."""

    @property
    def busy(self) -> int:
        """Questions that the worker turned away."""

    @property
    def reading(self) -> bool:
        """Whether text was sent ahead and nothing was asked behind it yet: the worker may still read it."""

    @property
    def failures(self) -> int:
        """Conversations that broke, answers that made no sense, refusals."""

    @property
    def last_error(self) -> SuffixError | None:
        """The last thing that went wrong."""

    @property
    def seconds_per_token(self) -> float:
        """Of the worker that is asked."""

    def set_text(self, token_ids: Sequence[int]) -> None:
        """Start over with this text; what it shares with the one before stays on the worker. Nothing is
        sent: a worker that is never asked should not compute."""

    def append(self, token_ids: Sequence[int]) -> None:
        """The text goes on; nothing is sent."""

    def draft(
        self,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        """What follows the text, or nothing if it does not come in time.

        Args:
            after: tokens drafted already, behind which to go on: the draft follows the text and these. They
                do not become part of the text.
            suggested: what may follow these. The draft is the same without, but for what rounding decides;
                it comes sooner where the model agrees with them. Not every worker looks at them.

        Returns:
            A draft of at most so many tokens, with the draft model's own probabilities.
        """

    def close(self) -> None:
        """Free what the worker holds. Idempotent."""


class DraftWorker(Protocol):
    """A connection to one worker, or to several. Thread-safe but for closing. A context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def describe(self, timeout_seconds: float = 10.0) -> WorkerDescription:
        """What it is. ServiceUnavailableError when nobody answers in time."""

    def check_vocabulary(self, target: Vocabulary, timeout_seconds: float = 10.0) -> WorkerDescription:
        """Refuse a worker whose ids mean something else than the target's. From then on sessions use only
        what passed: a worker that restarted is checked again before its drafts are.

        Raises:
            VocabularyMismatchError: names the rule, and the first token that differs.
            ServiceUnavailableError: nobody answers.
        """

    def open_session(
        self, *, p_min: float = 0.4, top_k: int = 10, wait_seconds: float = 0.0
    ) -> DraftingSession:
        """A context of its own; sends nothing.

        Args:
            p_min: drafts end before a token less likely than this.
            top_k: probabilities are over so many best tokens.
            wait_seconds: how long a question may wait for its start at a worker that is busy with others
                (ours); 0 = what that finds right.
        """

    def close(self) -> None:
        """Drop the connection and everything that belongs to it. Idempotent."""
