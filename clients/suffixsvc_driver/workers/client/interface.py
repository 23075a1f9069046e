"""Interface of a draft worker, as layers use it: our own over gRPC, a llama-server, or a pool of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from suffixsvc.errors import SuffixError
from suffixsvc.types import Draft
from suffixsvc_models.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """A worker's description of itself.

    Attributes:
        model: a file name or an alias.
        context_size: capacity in tokens; 0 = unknown.
        seconds_per_token: time of a drafted token, measured by the worker at its start, or on a few tokens by
            the first request of a client.
        parameters: number of weights; 0 = unknown.
        instance_id: changes with a restart (ours), or with another model (llama-server).
        vocabulary: without texts.
        compared: what part of the vocabulary was compared with the target's; empty before that.
        seconds_per_read_token: prefill time of a token, many at once; 0 = unknown.
        checks: number of suggested tokens that it verifies in one pass.
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


class SessionCounts:
    """Counters of a session.

    Attributes:
        late: queries that timed out.
        busy: queries that the worker refused as busy.
        failures: broken channels, malformed replies and refusals.
    """

    def __init__(self) -> None:
        self.late = self.busy = self.failures = 0


class DraftSession(Protocol):
    """One context on a worker: follows a text and drafts, each query within a timeout.

    Any failure (timeout, busy, restarted, unreachable, malformed reply) is an empty draft, counted; the
    worker gets the missing text later. Used by one thread at a time.

    Attributes:
        late, busy, failures: see :class:`SessionCounts`.
    """

    late: int
    busy: int
    failures: int

    @property
    def reading(self) -> bool:
        """Whether text was sent ahead without a query since: its prefill may still run."""

    @property
    def last_error(self) -> SuffixError | None:
        """The last failure."""

    @property
    def seconds_per_token(self) -> float:
        """Time of a drafted token on the current worker."""

    def set_text(self, token_ids: Sequence[int]) -> None:
        """Replace the text; the common prefix stays on the worker. Nothing is sent before the next query:
        a worker that is never queried should not compute."""

    def append(self, token_ids: Sequence[int]) -> None:
        """Append to the text; nothing is sent."""

    def draft(
        self,
        max_draft_tokens: int,
        timeout_seconds: float,
        after: Sequence[int] = (),
        suggested: Sequence[int] = (),
    ) -> Draft:
        """Draft a continuation of the text; empty after the timeout.

        Args:
            after: tokens drafted already: the draft follows the text and these. They do not become part of
                the text.
            suggested: tokens that may follow these. The draft is the same without them, apart from rounding;
                it arrives sooner if the model agrees with them. Not every worker uses them.

        Returns:
            A draft of at most ``max_draft_tokens`` tokens, with the draft model's own probabilities.
        """

    def close(self) -> None:
        """Free the session's state on the worker. Idempotent."""


class DraftWorker(Protocol):
    """A connection to one or several workers. Thread-safe except for closing. A context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def up(self) -> bool:
        """Whether the worker, or one of several, replied when it was last needed."""

    def check_vocabulary(self, target: Vocabulary, timeout_seconds: float = 10.0) -> WorkerDescription:
        """Compare the worker's vocabulary with the target's. From then on sessions use only instances that
        passed: a worker that restarted is checked again before its drafts are used.

        Raises:
            VocabularyMismatchError: names the rule, and the first token that differs.
            ServiceUnavailableError: no reply.
        """

    def open_session(
        self, *, p_min: float = 0.4, top_k: int = 10, wait_seconds: float = 0.0, principal: str = ""
    ) -> DraftSession:
        """Open a session; sends nothing.

        Args:
            p_min: drafts end before a token less likely than this.
            top_k: probabilities are normalised over this many best tokens.
            wait_seconds: how long a query may wait for its start at a worker that is busy with others (ours
                only); 0 = the worker's own limit.
            principal: owner of the texts: KV is reused between sessions of one principal only (by our
                workers; a llama-server does not know principals). A session of a named one leaves its KV to
                the next ones when it is closed; of the unnamed one it is freed.
        """

    def close(self) -> None:
        """Close the connection and its channels. Idempotent."""
