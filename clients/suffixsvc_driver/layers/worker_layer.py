"""What layers have in common that draft with a model on a worker: a session, and how long they wait."""

from __future__ import annotations

from typing import Final, TypedDict

from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.workers.interface import DraftingSession, DraftWorker, WorkerDescription

__all__ = ["WorkerLayer", "WorkerOptions", "least_probability"]

#: an answer may take this many times what the drafted tokens should, and this much beyond
_PATIENCE: Final = 3.0
_GRACE_SECONDS: Final = 0.05
#: no worker is waited for any longer, however slow it says it is
_LONGEST_SECONDS: Final = 10.0
#: where nothing is known of prices; and what no price makes better: below the one drafts are noise, above the
#: other good ones are cut off
_USUAL: Final = 0.4
_BOUNDS: Final = (0.05, 0.4)


def least_probability(curve: CostCurve, seconds_per_token: float) -> float:
    """The probability below which a drafted token is not worth what it costs.

    Args:
        curve: of the target: verifying a token is taken to cost what it does at the best width.
        seconds_per_token: of the draft model, for one of the target's tokens.
    """
    verify = min((cost - 1.0) / width for width, cost in enumerate(curve.costs[2:], start=1))
    draft = seconds_per_token / curve.seconds_per_step if curve.seconds_per_step > 0 else 0.0
    low, high = _BOUNDS
    return min(high, max(low, verify + draft))


class WorkerOptions(TypedDict, total=False):
    """What every layer on a worker can be told. Tokens are the worker's.

    Attributes:
        p_min: the worker stops before a token less likely than this; None, as by default: what tokens cost
            decides.
        curve: what the target's steps cost, for that; without it 0.4 is taken.
        top_k: how many of the most probable tokens it looks at; 10.
        max_draft_tokens: of the target; 16.
        wait_seconds: how long a question may wait for its start where other drivers keep the worker busy; 0,
            as by default: what the worker finds right, which is two of its tokens. A driver whose target
            takes long over a step does well to say more: about such a step.
        timeout_seconds: how long to wait for a draft; None, as by default: what the worker's own speed
            suggests, three times over.
    """

    p_min: float | None
    curve: CostCurve | None
    top_k: int
    max_draft_tokens: int
    wait_seconds: float
    timeout_seconds: float | None


class WorkerLayer:
    """A session on a worker.

    Args:
        worker: connected to a worker, or to several (a pool); the caller's to close.
        description: of the worker's model, which can draft for the target.
        token_ratio: tokens of the worker's model for one of the target.
        options: see :class:`WorkerOptions`.
    """

    def __init__(
        self,
        worker: DraftWorker,
        description: WorkerDescription,
        name: str,
        token_ratio: float,
        options: WorkerOptions,
    ) -> None:
        self.description = description
        self.spec = LayerSpec(
            name,
            LayerKind.DRAFT_MODEL,
            seconds_per_token=description.seconds_per_token * token_ratio,
            max_draft_tokens=options.get("max_draft_tokens", 16),
            continues=True,
            seconds_per_read_token=description.seconds_per_read_token * token_ratio,
        )
        p_min, curve = options.get("p_min"), options.get("curve")
        if p_min is None:
            seconds = self.spec.seconds_per_token
            p_min = _USUAL if curve is None else least_probability(curve, seconds)
        self._session = worker.open_session(
            p_min=p_min, top_k=options.get("top_k", 10), wait_seconds=options.get("wait_seconds", 0.0)
        )
        self._timeout = options.get("timeout_seconds")

    @property
    def session(self) -> DraftingSession:
        """The context on the worker, for its counters."""
        return self._session

    def close(self) -> None:
        """Free the worker's KV."""
        self._session.close()

    def _seconds_for(self, tokens: int) -> float:
        """How long to wait while the worker reads and writes so many tokens of its own."""
        if self._timeout is not None:
            return self._timeout
        return min(_LONGEST_SECONDS, _GRACE_SECONDS + _PATIENCE * tokens * self._session.seconds_per_token)
