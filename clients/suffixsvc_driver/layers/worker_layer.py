"""Base class of layers that draft with a model on a worker: its session and its timeout."""

from __future__ import annotations

from typing import Final, TypedDict

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec
from suffixsvc_driver.workers.client.interface import DraftWorker, WorkerDescription

#: timeout of a reply: this multiple of the expected time of its tokens, and this much more
_TIMEOUT_FACTOR: Final = 3.0
_GRACE_SECONDS: Final = 0.05
#: limit of the timeout, however slow a worker is
_MAX_TIMEOUT_SECONDS: Final = 10.0
#: default of ``p_min`` without a cost curve
_DEFAULT_P_MIN: Final = 0.4
#: range of ``p_min``: below it drafts are noise, above it good drafts are cut off
_P_MIN_RANGE: Final = (0.05, 0.4)


def break_even_probability(curve: CostCurve, seconds_per_token: float) -> float:
    """Return the probability at which the expected gain of a drafted token equals its cost.

    Args:
        curve: cost curve of the target; verification is assumed to cost as at the best width.
        seconds_per_token: time of the draft model per token of the target.
    """
    verify = min((cost - 1.0) / width for width, cost in enumerate(curve.costs[2:], start=1))
    draft = seconds_per_token / curve.seconds_per_step if curve.seconds_per_step > 0 else 0.0
    low, high = _P_MIN_RANGE
    return min(high, max(low, verify + draft))


class WorkerOptions(TypedDict, total=False):
    """Options of every layer on a worker. Tokens are the worker's.

    Attributes:
        p_min: drafts end before a token less likely than this; None (default) = by the cost of tokens.
        curve: cost curve of the target, for that; without it 0.4 is used.
        top_k: probabilities are normalised over this many most probable tokens; default 10.
        max_draft_tokens: limit of a draft, in tokens of the target; default 16.
        wait_seconds: how long a query may wait for its start while other drivers use the worker; 0 (default)
            = the worker's own limit, the time of two of its tokens. Use about the time of a target step if
            that is longer.
        timeout_seconds: how long to wait for a draft; None (default) = three times the expected time.
        principal: owner of the text; the worker reuses KV between sessions of one principal only.
    """

    p_min: float | None
    curve: CostCurve | None
    top_k: int
    max_draft_tokens: int
    wait_seconds: float
    timeout_seconds: float | None
    principal: str


class WorkerLayer:
    """A layer with a session on a worker.

    Args:
        worker: connection to a worker, or to several (a pool); the caller closes it.
        description: description of the worker, whose model can draft for the target.
        token_ratio: tokens of the worker's model per token of the target.
        options: see :class:`WorkerOptions`.

    Attributes:
        session: the session on the worker, with its counters.
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
            can_continue=True,
            seconds_per_read_token=description.seconds_per_read_token * token_ratio,
        )
        p_min, curve = options.get("p_min"), options.get("curve")
        if p_min is None:
            seconds = self.spec.seconds_per_token
            p_min = _DEFAULT_P_MIN if curve is None else break_even_probability(curve, seconds)
        self.session = worker.open_session(
            p_min=p_min,
            top_k=options.get("top_k", 10),
            wait_seconds=options.get("wait_seconds", 0.0),
            principal=options.get("principal", ""),
        )
        self._timeout = options.get("timeout_seconds")

    def close(self) -> None:
        """Close the session, which frees the worker's KV."""
        self.session.close()

    def _seconds_for(self, tokens: int) -> float:
        """Timeout of a reply for which the worker computes ``tokens`` tokens."""
        if self._timeout is not None:
            return self._timeout
        expected = tokens * self.session.seconds_per_token
        return min(_MAX_TIMEOUT_SECONDS, _GRACE_SECONDS + _TIMEOUT_FACTOR * expected)
