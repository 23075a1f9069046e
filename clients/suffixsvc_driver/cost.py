"""What a target's steps cost: measured, kept, compared with what they cost now.

A curve is measured once and kept (:mod:`suffixsvc_driver.cost_file`). Whoever works for long compares what
was kept with a few steps first; where nobody wants to wait, a few steps are enough for a guess.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog

from suffixsvc.errors import InvalidCostError
from suffixsvc_driver.cost_file import MEASURED_BEHIND, CurveKey, cost_folder, load_curve, save_curve
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.live_curve import KEPT, MEASURED, LiveCurve
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_binding import build_name

__all__ = [
    "MEASURE_SECONDS",
    "Progress",
    "check_curve",
    "guessed_curve",
    "kept_curve",
    "key_of",
    "live_curve",
    "measure_curve",
    "measured_curve",
    "scatter",
    "seconds_per_step",
]

_log = structlog.get_logger(__name__)
#: widths worth a measurement; those between take the dearer neighbour's cost
_WIDTHS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
#: widths by which a kept curve is compared with what steps take now, and how often each is taken: what widths
#: have in common tells of the others
_CHECKED_WIDTHS: Final = (1, 2, 4, 8, 16, 32)
_CHECK_ROUNDS: Final = 3
#: digits of a second that are told apart
_DIGITS: Final = 9
#: steps that a guess is based on, plain ones and some of this width
_GUESS_ROUNDS: Final = 5
_GUESS_WIDTH: Final = 4
#: what a guess takes a further token to cost at least, in plain steps: on a CPU it was never less
_LEAST_PER_TOKEN: Final = 0.1
#: a measurement whose samples lie further from their medians (in the median over the widths, relative) was
#: disturbed: 0.02 to 0.07 on a quiet machine, 0.11 to 0.2 beside other work
_STEADY: Final = 0.1
#: the most that measuring a target may take, a second measurement included: a model of 7B on two quiet cores
#: takes less
MEASURE_SECONDS: Final = 300.0
#: samples of a width that say how steady they are
_ENOUGH_SAMPLES: Final = 2

#: measurements done, measurements in all
Progress = Callable[[int, int], None]


class Probed(Protocol):
    """What can be measured: :class:`suffixsvc_driver.targets.llama.LlamaTarget`."""

    @property
    def max_width(self) -> int: ...

    @property
    def context_size(self) -> int: ...

    @property
    def position(self) -> int: ...

    def begin(self, prompt_ids: Sequence[int]) -> object: ...

    def probe(self, width: int) -> None:
        """Verify ``width`` tokens behind the current sequence and forget them again, except where only a
        draft can be forgotten: then a single token stays."""

    def rewind(self, keep: int) -> None: ...


def key_of(target: LlamaTarget) -> CurveKey:
    """The key of a target's curve. Reads 2 MiB of the model file."""
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
    )


def measured_curve(
    target: LlamaTarget,
    *,
    rounds: int = 5,
    folder: Path | None = None,
    again: bool = False,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """The target's curve from disk, or measured now and kept. A disk that cannot keep it is logged, no error.
    What was disturbed is measured again, once, where :data:`MEASURE_SECONDS` has time for it; if that was
    disturbed too it is logged, and takes the place of no curve that is there.

    Measuring takes one slot of the target's KV (the least recently used one) and leaves it empty. It ends
    after :data:`MEASURE_SECONDS`, with what was measured until then.

    Args:
        rounds: how often every width is measured.
        folder: instead of :func:`cost_folder`.
        again: measure even if a curve is there.
    """
    key = key_of(target)
    folder = folder or cost_folder()
    kept = _kept(key, folder)
    if kept is not None and not again:
        return kept
    _log.info(
        "measuring what the model's steps cost, once; the result is kept",
        model=key.model_name,
        seconds_at_most=MEASURE_SECONDS,
        folder=str(folder),
    )

    def disturbance(samples: Mapping[int, Sequence[float]]) -> float:
        few = min(map(len, samples.values()), default=0) < min(rounds, _ENOUGH_SAMPLES)
        return math.inf if few and target.max_width > 1 else scatter(samples)

    began = clock()
    curve, samples = measure_curve(
        target, rounds=rounds, seconds=MEASURE_SECONDS, progress=progress, clock=clock
    )
    taken = clock() - began
    if disturbance(samples) > _STEADY and 2 * taken <= MEASURE_SECONDS:
        second = measure_curve(
            target, rounds=rounds, seconds=MEASURE_SECONDS - taken, progress=progress, clock=clock
        )
        curve, samples = min((curve, samples), second, key=lambda found: disturbance(found[1]))
    if disturbance(samples) > _STEADY:
        _log.warning(
            "what steps cost was measured on a busy machine; measure again when it is quiet",
            samples_scatter=f"{scatter(samples):.0%} around their median",
            samples=sum(map(len, samples.values())),
        )
        if kept is not None:
            return kept
    try:
        save_curve(folder / key.file_name(), key, curve, samples)
    except OSError as err:
        _log.warning("the cost curve was measured but cannot be kept", path=str(folder), reason=str(err))
    return curve


def scatter(samples: Mapping[int, Sequence[float]]) -> float:
    """How far samples lie from their median, relative to it: the median over all widths. 0 without any."""

    def of_one(taken: Sequence[float]) -> float:
        middle = statistics.median(taken)
        return statistics.median(abs(sample - middle) for sample in taken) / middle

    found = [of_one(taken) for taken in samples.values() if min(taken, default=0.0) > 0.0]
    return statistics.median(found) if found else 0.0


def live_curve(
    target: LlamaTarget,
    *,
    rounds: int = 5,
    folder: Path | None = None,
    again: bool = False,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LiveCurve:
    """For long work: the target's curve from disk, corrected by a few steps of some widths, or measured now
    and kept. It goes on learning. See :func:`measured_curve` for the arguments, for how long measuring takes,
    and for what it does to the target.

    ``LiveCurve(guessed_curve(target), GUESSED)`` starts without measuring: a guess from ten steps."""
    kept = None if again else kept_curve(target, folder=folder)
    if kept is None:
        curve = measured_curve(
            target, rounds=rounds, folder=folder, again=again, progress=progress, clock=clock
        )
        return LiveCurve(curve, MEASURED)
    live = LiveCurve(kept, KEPT)
    check_curve(target, live, clock=clock)
    return live


def check_curve(target: Probed, live: LiveCurve, *, clock: Callable[[], float] = time.perf_counter) -> None:
    """Let a curve learn from a few steps of some widths, behind as much text as it was measured behind."""
    position = _position(target)
    text = _text(position)
    target.begin(text)
    widths = [width for width in _CHECKED_WIDTHS if width <= min(target.max_width, live.curve.max_width)]
    for turn in range(1 + _CHECK_ROUNDS):
        for width in widths if turn % 2 else reversed(widths):
            if target.position + width >= target.context_size:  # single tokens may stay
                target.begin(text)
            before = clock()
            target.probe(width)
            if turn:  # buffers are allocated on first use
                live.observe(width, clock() - before)
    target.rewind(0)


def kept_curve(target: LlamaTarget, *, folder: Path | None = None) -> CostCurve | None:
    """The target's curve from disk, or None where none is kept that is of use here, which is logged.

    Args:
        folder: instead of :func:`cost_folder`.
    """
    return _kept(key_of(target), folder or cost_folder())


def _kept(key: CurveKey, folder: Path) -> CostCurve | None:
    path = folder / key.file_name()
    if not os.path.exists(path):  # unlike Path.exists, quiet about a folder without rights
        return None
    try:
        return load_curve(path, key)
    except InvalidCostError as err:
        _log.warning("a kept cost curve is of no use here", reason=str(err))
        return None


def measure_curve(
    target: Probed,
    *,
    rounds: int = 5,
    seconds: float = math.inf,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[CostCurve, dict[int, list[float]]]:
    """Measure now. Every width is timed between two plain steps and divided by their mean, so that a
    machine that slows down meanwhile changes little; medians over the rounds, in alternating order, times
    what a plain step took in the median.

    Args:
        seconds: after these no further width is timed. A width without a sample then costs what its warm-up
            step did, and the widths above the last step cost as much a token as that step.

    Returns:
        The curve, and the seconds of each width that has samples, corrected so.
    """
    end = clock() + seconds
    text = _text(_position(target))
    target.begin(text)
    widths = [w for w in _WIDTHS if w < target.max_width]
    if target.max_width > 1:
        widths.append(target.max_width)
    done, total = 0, rounds * len(widths)

    def timed(width: int) -> float:
        if target.position + width >= target.context_size:  # single tokens may stay
            target.begin(text)
        before = clock()
        target.probe(width)
        return clock() - before

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


def _position(target: Probed) -> int:
    """Behind how many tokens to measure, as far as the context holds them."""
    return max(1, min(MEASURED_BEHIND, (target.context_size - target.max_width - 1) // 2))


def _text(length: int) -> list[int]:
    """Any will do: what a step costs does not depend on which tokens it holds."""
    return [1 + i % 97 for i in range(length)]


def guessed_curve(target: Probed, *, clock: Callable[[], float] = time.perf_counter) -> CostCurve:
    """A guess of what wide steps cost, from a few plain steps behind a short text and a few of some tokens:
    quick, and enough to begin with."""
    plain = seconds_per_step(target, rounds=_GUESS_ROUNDS, position=1, clock=clock)
    width = min(_GUESS_WIDTH, target.max_width)
    if width < 2 or plain <= 0.0:
        return CostCurve.guessed(target.max_width, seconds_per_step=plain)
    wide = seconds_per_step(target, width=width, rounds=_GUESS_ROUNDS, position=1, clock=clock)
    each = max(_LEAST_PER_TOKEN, (wide / plain - 1.0) / (width - 1))
    return CostCurve.guessed(target.max_width, each, seconds_per_step=plain)


def seconds_per_step(
    target: Probed,
    *,
    width: int = 1,
    rounds: int = 15,
    position: int = MEASURED_BEHIND,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """What a step takes, the median of ``rounds``; a plain one of a draft model is a drafted token.

    Args:
        width: tokens of the step.
        position: tokens of the text that the steps stand behind, as far as the context holds them.
    """
    position = max(1, min(position, target.context_size // 2))
    target.begin(_text(position))
    target.probe(width)  # buffers are allocated on first use
    taken = []
    for _ in range(rounds):
        before = clock()
        target.probe(width)
        taken.append(clock() - before)
    target.rewind(0)
    return statistics.median(taken)
