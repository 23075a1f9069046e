"""Run of several requests on one target (:mod:`~suffixsvc_driver.decode.running_batch`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from suffixsvc.errors import InvalidInputError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Request, curve_for
from suffixsvc_driver.decode.requests import Failure, Outcome, Run
from suffixsvc_driver.decode.running_batch import RunningBatch
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets import ParallelTarget


def generate_many(
    target: ParallelTarget,
    requests: Iterable[Request],
    config: DriverConfig | None = None,
    *,
    curve: CostCurve | LiveCurve | None = None,
    calibrator: Calibrator | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Run every request, as many at once as the target has lanes.

    Each text is that of :func:`~suffixsvc_driver.decode.loop.generate`, except for near-ties, which may round
    differently in another part of the KV cache. Errors of a request are its :class:`Failure`.

    Args:
        target: the target.
        requests: consumed one by one as lanes become free, so a generator may derive requests from results.
            If it raises, the remaining requests are lost and the exception is the last outcome.
        config: settings of all requests.
        curve: cost of the target's steps by the tokens of the whole batch; None for a guess that learns.
        calibrator: learned statistics of the layers by name, which the requests continue.
        clock: seconds, for statistics and for the cost of steps and queries; no deadline depends on it.

    Raises:
        InvalidConfigError: the curve is wider than the target's batches.
    """
    batch = RunningBatch(
        target, config or DriverConfig(), curve_for(target, curve), calibrator or Calibrator(), clock
    )
    began = clock()
    waiting, outcomes = iter(requests), dict[int, Outcome]()
    started, more = 0, True
    while more or not batch.idle:
        while more and not batch.full:
            more = _start(batch, waiting, partial(outcomes.__setitem__, started), started)
            started += 1
        batch.advance()
    return Run(tuple(outcomes[i] for i in sorted(outcomes)), clock() - began)


def _start(
    batch: RunningBatch, waiting: Iterator[Request], done: Callable[[Outcome], None], index: int
) -> bool:
    """Start the next request; return False when there is none."""
    try:
        request = next(waiting)
    except StopIteration:
        return False
    except Exception as err:  # the requests before it continue
        done(Failure(err))
        return False
    if not isinstance(request, Request):
        wrong = InvalidInputError(f"requests[{index}] must be a Request", got=type(request).__name__)
        done(Failure(wrong))
        return True
    try:
        batch.add(request, done)
    except Exception as err:  # of this request only
        done(Failure(err))
    return True
