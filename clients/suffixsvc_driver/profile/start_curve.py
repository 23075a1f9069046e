"""Cost curve of a target at the start of a server: the stored one, or one that is measured in about a second.

Steps of a few widths are timed after a short context. Widths between two of them take the cost of the more
expensive neighbour, so that drafts are short where nothing is known. The curve then learns from every step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from suffixsvc.errors import ModelError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import GUESSED, STORED, LiveCurve
from suffixsvc_driver.profile.target_cost import stored_curve
from suffixsvc_driver.targets.llama.attention import choose_flash_attention
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.single import LlamaTarget

_log = structlog.get_logger(__name__)
#: timed widths, narrow ones first: time may not suffice for all
_WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64)
#: widths that are timed however long that takes
_LEAST_WIDTHS: Final = 3
#: time after which no further step is timed, and the largest number of samples of a width
_SECONDS: Final = 1.0
_ROUNDS: Final = 3
#: context of the steps, tokens
_POSITION: Final = 32
_CONTEXT: Final = 512


def start_curve(
    model: LlamaModel, settings: ContextSettings, *, clock: Callable[[], float] = time.perf_counter
) -> LiveCurve:
    """Return a curve that learns from every step of a target.

    Args:
        model: the target's model; a small context is created on it and freed.
        settings: of the target, whose lanes share KV; a curve of all its lanes is that of one.
        clock: seconds.
    """
    attention = choose_flash_attention(model, settings, shared=True)
    alone = replace(
        settings, slots=1, branches=0, prefix_tokens=0, context_size=_CONTEXT, flash_attention=attention
    )
    try:
        with LlamaTarget(model, alone) as target:
            stored = stored_curve(target)
            if stored is not None:
                return LiveCurve(stored, STORED)
            return LiveCurve(_measured(target, clock), STORED)
    except ModelError as error:
        _log.warning("the cost of steps is estimated: it could not be measured", reason=str(error))
        return LiveCurve(CostCurve.guessed(settings.max_width), GUESSED)


def _measured(target: LlamaTarget, clock: Callable[[], float]) -> CostCurve:
    """Time steps, in rounds of all widths."""
    widest = target.max_width
    widths = [width for width in _WIDTHS if width < widest] + [widest]
    target.begin([1 + i % 97 for i in range(_POSITION)])
    target.probe(1)  # buffers are allocated on first use
    samples: dict[int, list[float]] = {}
    end = clock() + _SECONDS
    for _ in range(_ROUNDS):
        for at, width in enumerate(widths):
            if target.position + width >= target.context_size or (at >= _LEAST_WIDTHS and clock() >= end):
                break
            before = clock()
            target.probe(width)
            samples.setdefault(width, []).append(clock() - before)
        if clock() >= end:
            break
    target.rewind(0)
    return _curve(samples, widest)


def _curve(samples: dict[int, list[float]], widest: int) -> CostCurve:
    """A curve of the fastest samples: what delays a step is not part of its cost. Beyond the widest sample
    each token costs as much as it does there on average."""
    plain = min(samples[1])
    costs = {width: max(1.0, min(taken) / plain) if width > 1 else 1.0 for width, taken in samples.items()}
    last = max(costs)
    costs |= {width: costs[last] * width / last for width in range(last + 1, widest + 1)}
    unit = statistics.median(samples[1])
    return CostCurve.from_samples(costs, seconds_per_step=unit)
