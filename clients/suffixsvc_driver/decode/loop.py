"""Decoding loop of one generation: queries the layers, runs the target, records the steps.

The clock is for statistics and for the cost of steps and queries; no deadline depends on it. Layers that may
block (remote ones) have their own timeouts. :mod:`suffixsvc_driver.decode.parallel` runs several
generations at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenIds
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Generation, Request, Result, StepRecord, curve_for
from suffixsvc_driver.drafts.events import Verify
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.targets import StopRule, Target

__all__ = ["Result", "StepRecord", "drain", "generate", "stream"]

T = TypeVar("T")


def generate(
    target: Target,
    prompt_ids: TokenIds,
    config: DriverConfig | None = None,
    layers: Sequence[Layer] = (),
    max_tokens: int = 256,
    *,
    sampling: Sampling = GREEDY,
    curve: CostCurve | LiveCurve | None = None,
    calibrator: Calibrator | None = None,
    stop: StopRule | None = None,
    content: Callable[[Sequence[int]], ContentType] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Generate up to ``max_tokens`` tokens after a prompt.

    The tokens are those that the target samples, whatever the layers draft; without layers this is plain
    decoding. Exceptions of layers are counted, logged once, and not raised.

    Args:
        target: the model.
        config: policy and its settings.
        curve: cost of the target's steps. A :class:`LiveCurve` learns from them and should be shared by all
            generations; None for a guess that learns.
        clock: seconds, for statistics and for the cost of steps and queries; no deadline depends on it.

    The other arguments are the attributes of :class:`~suffixsvc_driver.decode.generation.Request`.

    Raises:
        InvalidTokensError: the prompt is empty or has ids outside the vocabulary.
        LimitExceededError: the prompt is longer than the context.
        GrammarError: the grammar is malformed (before anything is computed), or permits no token
            at a position.
        ModelError: the target failed.
    """
    request = Request(prompt_ids, layers, max_tokens, sampling, stop, content, calibrator)
    return drain(stream(target, request, config, curve=curve, clock=clock), on_step)


def drain(steps: Generator[StepRecord, None, T], on_step: Callable[[StepRecord], None] | None = None) -> T:
    """Run all steps and return the generator's value.

    The generator is closed if a step or ``on_step`` raises.
    """
    try:
        while True:
            try:
                record = next(steps)
            except StopIteration as finished:
                value: T = finished.value
                return value
            if on_step is not None:
                on_step(record)
    finally:
        steps.close()


def stream(
    target: Target,
    request: Request,
    config: DriverConfig | None = None,
    *,
    curve: CostCurve | LiveCurve | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[StepRecord, None, Result]:
    """Generate step by step: yields every target step and returns the result.

    Nothing runs between steps, so several generators can be interleaved. If the generator is closed before
    its end, the layers are not ended. ``on_step`` of the request is not called. Arguments and exceptions are
    those of :func:`generate`; exceptions are raised from the first step on.
    """
    if request.prompt_logprobs is not None:
        raise InvalidInputError(
            "prompt_logprobs must be None: one generation alone does not report them",
            got=request.prompt_logprobs,
            remedy="Run the request in a shared batch, with generate_many or a Scheduler.",
        )
    generation = Generation(target, request, config or DriverConfig(), curve_for(target, curve), clock)
    sampler, stop = generation.sampler, request.stop
    began = clock()
    prefill = target.begin(request.prompt_ids, principal=request.principal)
    decision = generation.begin(prefill, clock() - began)
    while isinstance(decision, Verify):
        before = clock()
        seen = target.verify(decision.token_ids, sampler, generation.left, stop, decision.parents)
        record = generation.record_step(decision, seen, clock() - before)
        yield record
        decision = generation.advance(record, seen)
    return generation.finish()
