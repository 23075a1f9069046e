"""The loop around the state machine: asks layers, runs the target, keeps the book.

The clock in here is for accounting and for the price of asking; nothing waits on it. A layer that could
block (a remote one) brings its own timer. :mod:`suffixsvc_driver.parallel` runs several generations at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from suffixsvc.types import TokenIds
from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import Verify
from suffixsvc_driver.generation import Generation, Result, StepRecord, curve_for
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.targets import StopRule, Target
from suffixsvc_driver.trust import Trust

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
    trust: Trust | None = None,
    stop: StopRule | None = None,
    content: Callable[[Sequence[int]], ContentType] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Write up to ``max_tokens`` tokens behind a prompt.

    The tokens are the target's own choices, whatever the layers say; without layers this is plain
    decoding.

    Args:
        target: the model.
        prompt_ids: 1-D, at least one token.
        config: policy and its settings.
        layers: in the order in which they are asked, cheapest first.
        sampling: how tokens are chosen. Drafted tokens that its grammar forbids are never sent.
        curve: what the target's steps cost. A live one learns from them, and so does the guess that is made
            without one; give the same live one to all generations.
        trust: what earlier generations learned about these layers; it learns on.
        stop: ends the generation where it holds.
        content: says what kind of text token ids are, for controllers that go by it; asked now and then.
        on_step: called after every step, before the next one starts.
        clock: seconds; for accounting only.

    Raises:
        InvalidTokensError, LimitExceededError: the prompt.
        GrammarError: of ``sampling``, before anything is computed; or later, where nothing is permitted.
        ModelError: the target. Whatever a layer raises is counted, logged once and goes no further.
    """
    steps = stream(
        target,
        prompt_ids,
        config,
        layers,
        max_tokens,
        sampling=sampling,
        curve=curve,
        trust=trust,
        stop=stop,
        content=content,
        clock=clock,
    )
    return drain(steps, on_step)


def drain(steps: Generator[StepRecord, None, T], on_step: Callable[[StepRecord], None] | None = None) -> T:
    """Go through all steps; the generator's value. It is closed where a step, or ``on_step``, raises."""
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
    prompt_ids: TokenIds,
    config: DriverConfig | None = None,
    layers: Sequence[Layer] = (),
    max_tokens: int = 256,
    *,
    sampling: Sampling = GREEDY,
    curve: CostCurve | LiveCurve | None = None,
    trust: Trust | None = None,
    stop: StopRule | None = None,
    content: Callable[[Sequence[int]], ContentType] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[StepRecord, None, Result]:
    """Like :func:`generate`, a step at a time: every target step as it is done, the result as the generator's
    value. Nothing happens between steps, so that several of them can take turns; closing the generator before
    its end leaves the layers untold.

    Raises:
        As :func:`generate`, from the first step on.
    """
    generation = Generation(
        config or DriverConfig(),
        curve_for(target, curve),
        layers,
        max_tokens,
        clock,
        target.chooser(sampling, prompt_ids),
        target.vocab_size,
        trust=trust,
        content=content,
    )
    chooser = generation.chooser
    began = clock()
    prefill = target.begin(prompt_ids)
    prompt = tuple(int(t) for t in prompt_ids)
    decision = generation.begin(target, prompt, prefill, clock() - began)
    while isinstance(decision, Verify):
        before = clock()
        if decision.parents:
            seen = target.verify(decision.token_ids, chooser, generation.left, stop, decision.parents)
        else:
            seen = target.verify(decision.token_ids, chooser, generation.left, stop)
        record = generation.write_down(decision, seen, clock() - before)
        yield record
        decision = generation.go_on(record, seen)
    return generation.finish()
