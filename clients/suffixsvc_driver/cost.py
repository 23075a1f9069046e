"""Measuring a target's cost curve, and keeping it on disk.

A curve belongs to a model file, a thread count, a build of llama.cpp and a machine. Files lie in
``$SUFFIXSVC_HOME/cost`` and name all of these; one from another machine is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import xxhash

from suffixsvc.config import data_home
from suffixsvc.errors import InvalidCostError
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_binding import build_name

__all__ = [
    "CurveKey",
    "cost_folder",
    "guessed_curve",
    "kept_curve",
    "key_of",
    "load_curve",
    "measure_curve",
    "measured_curve",
    "save_curve",
    "scatter",
    "seconds_per_step",
]

_log = structlog.get_logger(__name__)
_FORMAT: Final = "suffixsvc-cost/1"
#: widths worth a measurement; those between take the dearer neighbour's cost
_WIDTHS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
#: tokens in front of the measured ones, about as many as a call of an agent has: the longer the text, the
#: more plain steps a wide one costs
_POSITION: Final = 768
#: steps that a guess is based on, plain ones and some of this width
_GUESS_ROUNDS: Final = 5
_GUESS_WIDTH: Final = 4
#: what a guess takes a further token to cost at least, in plain steps: on a CPU it was never less
_LEAST_PER_TOKEN: Final = 0.1
#: a measurement whose samples lie further from their medians (in the median over the widths, relative) was
#: disturbed: 0.02 to 0.07 on a quiet machine, 0.11 to 0.2 beside other work
_STEADY: Final = 0.1

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


@dataclass(frozen=True, slots=True)
class CurveKey:
    """What a curve depends on. ``model`` is a hash of the file's size, head and tail; ``behind`` is the most
    tokens that stood in front of what was measured."""

    model: str
    model_name: str
    threads: int
    build: str
    max_width: int
    flash_attention: bool | None
    kv_type: str
    experts_used: int | None = None
    snapshots: bool = True
    full_window: bool = True
    behind: int = _POSITION

    def file_name(self) -> str:
        digest = xxhash.xxh3_64_hexdigest(json.dumps(asdict(self), sort_keys=True).encode())
        return f"{Path(self.model_name).stem}-t{self.threads}-w{self.max_width}-{digest}.json"


def cost_folder() -> Path:
    """Where curves lie."""
    return Path(data_home()) / "cost"


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
    drift: float | None = None,
    progress: Progress | None = None,
) -> CostCurve:
    """The target's curve from disk, or measured now and kept. A disk that cannot keep it is logged, no error.
    What was disturbed is measured again, once; if that was disturbed too it is logged, and takes the place of
    no curve that is there.

    Measuring takes one slot of the target's KV (the least recently used one) and leaves it empty.

    Args:
        rounds: how often every width is measured.
        folder: instead of :func:`cost_folder`.
        again: measure even if a curve is there.
        drift: measure also where a plain step now takes so many times what it took then, or less; costs some
            plain steps.
    """
    key = key_of(target)
    folder = folder or cost_folder()
    kept = None if again else _kept(key, folder)
    if kept is not None and (drift is None or not _drifted(target, kept, drift)):
        return kept
    curve, samples = measure_curve(target, rounds=rounds, progress=progress)
    if scatter(samples) > _STEADY:
        second = measure_curve(target, rounds=rounds, progress=progress)
        curve, samples = min((curve, samples), second, key=lambda found: scatter(found[1]))
    if scatter(samples) > _STEADY:
        _log.warning(
            "what steps cost was measured on a busy machine; measure again when it is quiet",
            samples_scatter=f"{scatter(samples):.0%} around their median",
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


def _drifted(target: Probed, curve: CostCurve, drift: float) -> bool:
    now = seconds_per_step(target)
    return not curve.seconds_per_step / drift < now < curve.seconds_per_step * drift


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
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[CostCurve, dict[int, list[float]]]:
    """Measure now. Every width is timed between two plain steps and divided by their mean, so that a
    machine that slows down meanwhile changes little; medians over the rounds, in alternating order.

    Returns:
        The curve, and the relative cost samples of each width.
    """
    position = max(1, min(_POSITION, (target.context_size - target.max_width - 1) // 2))
    # any text will do: what a step costs does not depend on which tokens it holds
    text = [1 + i % 97 for i in range(position)]
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

    for width in (1, *widths):
        timed(width)  # buffers are allocated on first use
    plain: list[float] = [timed(1)]
    samples: dict[int, list[float]] = {width: [] for width in widths}
    for turn in range(rounds):
        for width in widths if turn % 2 == 0 else reversed(widths):
            seconds = timed(width)
            plain.append(timed(1))
            samples[width].append(2 * seconds / (plain[-1] + plain[-2]))
            done += 1
            if progress is not None:
                progress(done, total)
    target.rewind(0)
    medians = {1: 1.0, **{width: statistics.median(s) for width, s in samples.items()}}
    return CostCurve.from_samples(medians, seconds_per_step=statistics.median(plain)), samples


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
    position: int = _POSITION,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """What a step takes, the median of ``rounds``; a plain one of a draft model is a drafted token.

    Args:
        width: tokens of the step.
        position: tokens of the text that the steps stand behind, as far as the context holds them.
    """
    position = max(1, min(position, target.context_size // 2))
    target.begin([1 + i % 97 for i in range(position)])
    target.probe(width)  # buffers are allocated on first use
    taken = []
    for _ in range(rounds):
        before = clock()
        target.probe(width)
        taken.append(clock() - before)
    target.rewind(0)
    return statistics.median(taken)


def save_curve(path: Path, key: CurveKey, curve: CostCurve, samples: dict[int, list[float]]) -> None:
    """Write a curve's file, whole or not at all.

    Raises:
        OSError: the disk is full or the folder cannot be written to.
    """
    data = {
        "format": _FORMAT,
        "machine": _machine(),
        "key": asdict(key),
        "curve": curve.to_json(),
        "samples": {str(w): s for w, s in samples.items()},
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".cost-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def load_curve(path: Path, key: CurveKey) -> CostCurve:
    """Read a curve's file.

    Raises:
        InvalidCostError: not such a file, of another model or setting, or from another machine.
    """
    remedy = f"Delete {path.name} to measure again."
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        raise InvalidCostError("a cost curve's file cannot be read", got=str(err), remedy=remedy) from err
    if not isinstance(data, dict) or data.get("format") != _FORMAT or not isinstance(data.get("curve"), dict):
        raise InvalidCostError("not a cost curve's file", expected=_FORMAT, got=str(data)[:80], remedy=remedy)
    if data.get("key") != asdict(key):
        raise InvalidCostError(
            "a cost curve of something else", expected=asdict(key), got=data.get("key"), remedy=remedy
        )
    if data.get("machine") != _machine():
        raise InvalidCostError(
            "a cost curve from another machine", expected=_machine(), got=data.get("machine"), remedy=remedy
        )
    return CostCurve.from_json(data["curve"])


def _machine() -> dict[str, Any]:
    model = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {"host": socket.gethostname(), "cpu": model, "cores": os.cpu_count()}
