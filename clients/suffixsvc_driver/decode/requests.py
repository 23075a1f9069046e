"""Requests, operations and results of :func:`suffixsvc_driver.decode.parallel.generate_many`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suffixsvc.types import TokenIds
from suffixsvc_driver.decode.generation import Result, StepRecord
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.targets import StopRule

__all__ = ["Began", "Failure", "Filled", "Operation", "Request", "Run", "Stepped"]


@dataclass(frozen=True, slots=True)
class Request:
    """Request for one generation, with the arguments of :func:`suffixsvc_driver.decode.loop.generate`.

    Attributes:
        layers: of this request alone; requests that run at the same time must not share layers.
        calibrator: None for that of the run.
    """

    prompt_ids: TokenIds
    layers: Sequence[Layer] = ()
    max_tokens: int = 256
    sampling: Sampling = GREEDY
    stop: StopRule | None = None
    content: Callable[[Sequence[int]], ContentType] | None = None
    calibrator: Calibrator | None = None
    on_step: Callable[[StepRecord], None] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Outcome of a failed request.

    Attributes:
        error: of its prompt, a callback, a batch or the iterator of the requests, or InvalidInputError for an
            element that is not a :class:`Request`.
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class Began:
    """Operation: the prompt of request number ``request`` was assigned to a lane."""

    lane: int
    request: int
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """Operation: a batch of a lane's prompt was computed."""

    lane: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """Operation: a shared batch.

    Attributes:
        steps: lane, drafted tokens and parents of each generation.
        emitted: tokens that each generation emitted; None if sampling failed.
    """

    steps: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    emitted: tuple[tuple[int, ...] | None, ...]


#: operation of the target; the same operations on an empty target give the same bits
Operation = Began | Filled | Stepped


@dataclass(frozen=True, slots=True)
class Run:
    """Result of :func:`generate_many`.

    Attributes:
        outcomes: of each request, in order; the last one is a :class:`Failure` if the iterator of the
            requests raised. ``decode_seconds`` of a result include the prefill of other prompts between its
            steps, and ``target_seconds`` of a step are those of the whole batch.
        operations: all operations of the target, in order.
        seconds: of the whole run.
    """

    outcomes: tuple[Result | Failure, ...]
    operations: tuple[Operation, ...] = ()
    seconds: float = 0.0

    @property
    def results(self) -> list[Result]:
        """Results of the requests that succeeded."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Result)]

    @property
    def batches(self) -> int:
        """Number of shared batches, prefill excluded."""
        return sum(isinstance(operation, Stepped) for operation in self.operations)

    @property
    def tokens(self) -> int:
        """Emitted tokens of all results."""
        return sum(len(result.token_ids) for result in self.results)
