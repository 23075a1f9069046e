"""Outcomes of requests in shared batches (:mod:`~suffixsvc_driver.decode.parallel`,
:mod:`~suffixsvc_driver.decode.scheduler`)."""

from __future__ import annotations

from dataclasses import dataclass

from suffixsvc.errors import LimitExceededError
from suffixsvc_driver.decode.generation import Result


class QueueFullError(LimitExceededError):
    """Too many requests wait: the same request succeeds later.

    Attributes:
        retry_seconds: measured time in which one of the waiting requests gets a lane; 0 if unknown.
    """

    retry_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Outcome of a failed request.

    Attributes:
        error: of its prompt, a callback, a batch or the iterator of the requests, or InvalidInputError for an
            element that is not a :class:`suffixsvc_driver.decode.generation.Request`.
    """

    error: Exception


#: of a request
Outcome = Result | Failure


@dataclass(frozen=True, slots=True)
class Run:
    """Result of :func:`generate_many`.

    Attributes:
        outcomes: of each request, in order; the last one is a :class:`Failure` if the iterator of the
            requests raised. ``decode_seconds`` of a result include the prefill of other prompts between its
            steps, and ``target_seconds`` of a step are those of the whole batch.
        seconds: of the whole run.
    """

    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0

    @property
    def results(self) -> list[Result]:
        """Results of the requests that succeeded."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Result)]

    @property
    def tokens(self) -> int:
        """Emitted tokens of all results."""
        return sum(len(result.token_ids) for result in self.results)
