"""Measurement of a target's cost curve: measuring, storing, and correcting a stored curve.

A curve is measured once and stored (:mod:`suffixsvc_driver.cost.curve_file`). A long run first corrects the
stored curve by a few steps; if measuring takes too long, a few steps suffice for an estimate.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict, Unpack

import structlog

from suffixsvc.errors import InvalidCostError
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.curve_file import MEASURED_CONTEXT, CurveKey, cost_folder, load_curve, save_curve
from suffixsvc_driver.cost.live_curve import MEASURED, STORED, LiveCurve
from suffixsvc_driver.targets.llama.binding import build_name
from suffixsvc_driver.targets.single import LlamaTarget

_log = structlog.get_logger(__name__)
#: measured widths; widths between them take the cost of the more expensive neighbour
_WIDTHS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
#: widths by which a stored curve is corrected, and the samples of each; a common factor applies to all widths
_CHECKED_WIDTHS: Final = (1, 2, 4, 8, 16, 32)
_CHECK_ROUNDS: Final = 3
#: rounding of stored seconds, in digits
_DIGITS: Final = 9
#: samples of an estimate, of plain steps and of steps of this width
_GUESS_ROUNDS: Final = 5
_GUESS_WIDTH: Final = 4
#: smallest estimate of the cost of a further token, in plain steps: on a CPU it was never less
_LEAST_PER_TOKEN: Final = 0.1
#: a measurement with a larger relative deviation from the medians (median over the widths) was disturbed:
#: 0.02 to 0.07 on a quiet machine, 0.11 to 0.2 under other load
_STEADY: Final = 0.1
#: limit of the time for measuring a target, a second measurement included; 7B on two quiet cores take less
MEASURE_SECONDS: Final = 300.0
#: smallest number of samples of a width for which the deviation is meaningful
_ENOUGH_SAMPLES: Final = 2

#: called with (measurements done, total measurements)
Progress = Callable[[int, int], None]


def key_of(target: LlamaTarget) -> CurveKey:
    """Return the key of a target's curve. Reads 2 MiB of the model file."""
    settings = target.settings
    return CurveKey(
        target.model.digest,
        target.model.path.name,
        settings.threads,
        build_name(),
        settings.max_width,
        settings.flash_attention,
        settings.kv_type,
        target.model.experts_used,
        settings.snapshots,
        settings.full_window,
        device=target.model.device,
    )


class MeasureOptions(TypedDict, total=False):
    """Options of every measurement.

    Attributes:
        rounds: number of samples per width; default 5.
        progress: see :data:`Progress`.
        clock: seconds.
    """

    rounds: int
    progress: Progress | None
    clock: Callable[[], float]


def stored_or_measured_costs(
    target: LlamaTarget,
    *,
    folder: Path | None = None,
    again: bool = False,
    **options: Unpack[MeasureOptions],
) -> CostCurve:
    """Return the target's stored curve, or measure it now and store it.

    A disturbed measurement is repeated once if :data:`MEASURE_SECONDS` allows; if it is disturbed again, that
    is logged, and it does not replace a stored curve. A curve that cannot be stored is logged.

    Measuring uses one slot of the target's KV (the least recently used one) and leaves it empty. It ends
    after :data:`MEASURE_SECONDS`, with the samples taken so far.

    Args:
        folder: instead of :func:`cost_folder`.
        again: measure even if a curve is stored.
    """
    key, clock = key_of(target), options.get("clock", time.perf_counter)
    folder = folder or cost_folder()
    stored = stored_curve(target, folder=folder)
    if stored is not None and not again:
        return stored
    _log.info(
        "measuring the cost of the model's steps, once; the result is stored",
        model=key.model_name,
        seconds_at_most=MEASURE_SECONDS,
        folder=str(folder),
    )

    def disturbance(samples: Mapping[int, Sequence[float]]) -> float:
        few = min(map(len, samples.values()), default=0) < min(
            options.get("rounds", _ENOUGH_SAMPLES), _ENOUGH_SAMPLES
        )
        return math.inf if few and target.max_width > 1 else scatter(samples)

    began = clock()
    curve, samples = measure_curve(target, seconds=MEASURE_SECONDS, **options)
    taken = clock() - began
    if disturbance(samples) > _STEADY and 2 * taken <= MEASURE_SECONDS:
        second = measure_curve(target, seconds=MEASURE_SECONDS - taken, **options)
        curve, samples = min((curve, samples), second, key=lambda found: disturbance(found[1]))
    if disturbance(samples) > _STEADY:
        _log.warning(
            "the cost of steps was measured on a busy machine; measure again when it is quiet",
            samples_scatter=f"{scatter(samples):.0%} around their median",
            samples=sum(map(len, samples.values())),
        )
        if stored is not None:
            return stored
    try:
        save_curve(folder / key.file_name(), key, curve, samples)
    except OSError as err:
        _log.warning("the cost curve was measured but cannot be stored", path=str(folder), reason=str(err))
    return curve


def scatter(samples: Mapping[int, Sequence[float]]) -> float:
    """Return the relative deviation of samples from their median, as the median over all widths."""

    def of_one(taken: Sequence[float]) -> float:
        middle = statistics.median(taken)
        return statistics.median(abs(sample - middle) for sample in taken) / middle

    found = [of_one(taken) for taken in samples.values() if min(taken, default=0.0) > 0.0]
    return statistics.median(found) if found else 0.0


def measured_curve(
    target: LlamaTarget,
    *,
    folder: Path | None = None,
    again: bool = False,
    **options: Unpack[MeasureOptions],
) -> LiveCurve:
    """Return a curve that learns from every step: read from disk and corrected by a few steps of some widths,
    or measured now and stored.

    See :func:`stored_or_measured_costs` for the arguments, for how long measuring takes, and for what it does
    to the target.

    ``LiveCurve(guessed_curve(target), GUESSED)`` starts without measuring, with an estimate from ten steps.
    """
    stored = None if again else stored_curve(target, folder=folder)
    if stored is None:
        curve = stored_or_measured_costs(target, folder=folder, again=again, **options)
        return LiveCurve(curve, MEASURED)
    live = LiveCurve(stored, STORED)
    check_curve(target, live, clock=options.get("clock", time.perf_counter))
    return live


def check_curve(
    target: LlamaTarget, live: LiveCurve, *, clock: Callable[[], float] = time.perf_counter
) -> None:
    """Update a curve by a few steps of some widths, after a context of the same length as it was measured."""
    timer = _Timer(target, _position(target), clock)
    widths = [width for width in _CHECKED_WIDTHS if width <= min(target.max_width, live.curve.max_width)]
    for turn in range(1 + _CHECK_ROUNDS):
        for width in widths if turn % 2 else reversed(widths):
            seconds = timer.seconds(width)
            if turn:  # buffers are allocated on first use
                live.observe(width, seconds)
    target.rewind(0)


class _Timer:
    """Times steps after a context of a given length."""

    def __init__(self, target: LlamaTarget, position: int, clock: Callable[[], float]) -> None:
        self._target, self._clock = target, clock
        # arbitrary tokens: the cost of a step does not depend on them
        self._text = [1 + i % 97 for i in range(position)]
        target.begin(self._text)

    def seconds(self, width: int) -> float:
        """Return the seconds of a step of ``width`` tokens."""
        target = self._target
        if target.position + width >= target.context_size:  # single tokens may stay
            target.begin(self._text)
        before = self._clock()
        target.probe(width)
        return self._clock() - before


def stored_curve(target: LlamaTarget, *, folder: Path | None = None) -> CostCurve | None:
    """Return the target's stored curve; None if there is none, or if it is unusable, which is logged.

    Args:
        folder: instead of :func:`cost_folder`.
    """
    key = key_of(target)
    path = (folder or cost_folder()) / key.file_name()
    if not os.path.exists(path):  # unlike Path.exists, quiet about a folder without rights
        return None
    try:
        return load_curve(path, key)
    except InvalidCostError as err:
        _log.warning("a stored cost curve is unusable", reason=str(err))
        return None


def measure_curve(
    target: LlamaTarget,
    *,
    rounds: int = 5,
    seconds: float = math.inf,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[CostCurve, dict[int, list[float]]]:
    """Measure a curve now.

    Every width is timed between two plain steps and divided by their mean, so that a slowdown of the machine
    has little effect. The cost of a width is the median over the rounds, in alternating order, times the
    median of a plain step.

    Args:
        seconds: time limit. A width without a sample has the cost of its warm-up step, and wider ones than
            the last step have the same cost per token as that step.

    Returns:
        The curve, and the corrected seconds of the samples of each width.
    """
    end = clock() + seconds
    timed = _Timer(target, _position(target), clock).seconds
    widths = [w for w in _WIDTHS if w < target.max_width]
    if target.max_width > 1:
        widths.append(target.max_width)
    done, total = 0, rounds * len(widths)
    timed(1)  # buffers are allocated on first use
    first: dict[int, float] = {}
    for width in widths:
        if first and clock() >= end:
            break
        first[width] = timed(width)
    plain: list[float] = [timed(1)]
    ratios: dict[int, list[float]] = {}
    for turn in range(rounds):
        for width in widths if turn % 2 == 0 else reversed(widths):
            if clock() >= end:
                break
            taken = timed(width)
            plain.append(timed(1))
            ratios.setdefault(width, []).append(2 * taken / (plain[-1] + plain[-2]))
            done += 1
            if progress is not None:
                progress(done, total)
    target.rewind(0)
    unit = statistics.median(plain)
    medians = {
        1: 1.0,
        **{width: taken / unit for width, taken in first.items()},
        **{width: statistics.median(s) for width, s in ratios.items()},
    }
    curve = CostCurve.from_samples(medians)
    costs = [curve.cost(width) for width in range(max(1, target.max_width) + 1)]
    curve = CostCurve.from_seconds([round(cost * unit, _DIGITS) for cost in costs])
    return curve, {width: [unit * ratio for ratio in s] for width, s in ratios.items()}


def _position(target: LlamaTarget) -> int:
    """Length of the context before the measured steps, limited by the target's capacity."""
    return max(1, min(MEASURED_CONTEXT, (target.context_size - target.max_width - 1) // 2))


def guessed_curve(target: LlamaTarget, *, clock: Callable[[], float] = time.perf_counter) -> CostCurve:
    """Return an estimate of the curve, from a few plain steps and a few wider ones after a short context."""
    plain = seconds_per_step(target, rounds=_GUESS_ROUNDS, position=1, clock=clock)
    width = min(_GUESS_WIDTH, target.max_width)
    if width < 2 or plain <= 0.0:
        return CostCurve.guessed(target.max_width, seconds_per_step=plain)
    wide = seconds_per_step(target, width=width, rounds=_GUESS_ROUNDS, position=1, clock=clock)
    each = max(_LEAST_PER_TOKEN, (wide / plain - 1.0) / (width - 1))
    return CostCurve.guessed(target.max_width, each, seconds_per_step=plain)


def seconds_per_step(
    target: LlamaTarget,
    *,
    width: int = 1,
    rounds: int = 15,
    position: int = MEASURED_CONTEXT,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the median time of a step; a plain step of a draft model is a drafted token.

    Args:
        width: tokens of the step.
        rounds: number of samples.
        position: length of the context before the steps, limited by the target's capacity.
    """
    position = max(1, min(position, target.context_size // 2))
    timer = _Timer(target, position, clock)
    timer.seconds(width)  # buffers are allocated on first use
    taken = [timer.seconds(width) for _ in range(rounds)]
    target.rewind(0)
    return statistics.median(taken)
