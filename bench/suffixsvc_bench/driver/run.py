"""The driver's own time per step: recorded answers are emitted again by a target that computes nothing.

Everything else is real: the embedded engine, the suffix layer, prompt lookup, the decisions and the records.
The decisions are those at the simulated costs of a target, so all repetitions take the same ones, and every
step has the time of its fastest repetition. The target's own part of a step (a batch, sampling) is not
included.

After a step of a real model the processor's caches hold the model's weights. A *cold* step therefore begins
after other memory was read; a warm one follows the step before at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, SimulatedClock
from suffixsvc_bench.replay.logs import Call, read_calls
from suffixsvc_bench.report.output import Report
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.report.tables import Grid
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import MEASURED, LiveCurve
from suffixsvc_driver.decode.generation import Request, StepRecord
from suffixsvc_driver.decode.loop import stream
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.settings.driver_config import DriverConfig

#: simulated target: seconds of a plain step, and cost of a further token in plain steps
_STEP_SECONDS: Final = 0.02
_TOKEN_COST: Final = 0.3
_MAX_WIDTH: Final = 32
#: bytes read before a cold step: more than the caches of the processors that it was written for
_COLD_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of the steps, microseconds: percentiles over the steps of the fastest of all repetitions.

    Attributes:
        caches: "cold" or "warm".
        steps: their number.
        drafts: share of the steps that sent a draft.
    """

    caches: str
    steps: int
    drafts: float
    p10_us: float
    p50_us: float
    p90_us: float
    mean_us: float


def run_driver_bench(log: Path, calls: int, repetitions: int, report: Report) -> dict[str, Any]:
    """Measure warm and cold steps.

    Args:
        log: recorded calls with token ids.
        calls: largest number of calls.
        repetitions: of the whole log.
        report: called with the progress.

    Raises:
        InvalidInputError: the log cannot be read, or has no answer of two tokens.
    """
    chosen = [call for call, _ in zip(read_calls(log, None, None), range(calls), strict=False)]
    if not any(len(call.response) > 1 for call in chosen):
        raise InvalidInputError(f"{log} must have a call with a response of two tokens")
    found = []
    memory = np.ones(_COLD_BYTES // 8)
    for caches, prepare in (("warm", lambda: None), ("cold", memory.sum)):
        best: npt.NDArray[np.float64] | None = None
        for turn in range(repetitions):
            report(f"{caches} steps, repetition {turn + 1} of {repetitions}", turn / repetitions)
            times, drafted = _repetition(chosen, prepare)
            best = times if best is None else np.minimum(best, times)
        assert best is not None, "repetitions is at least 1"
        low, middle, high = (float(each) for each in np.percentile(best, (10, 50, 90)))
        found.append(StepTimes(caches, len(best), drafted, low, middle, high, float(best.mean())))
    return {"log": log.name, "provenance": asdict(provenance()), "times": [asdict(each) for each in found]}


def _repetition(
    calls: Sequence[Call], prepare: Callable[[], object]
) -> tuple[npt.NDArray[np.float64], float]:
    """Replay all calls with an empty memory; return the microseconds of each step but the first ones."""
    costs, clock = CostCurve.linear(_TOKEN_COST, _MAX_WIDTH, seconds_per_step=_STEP_SECONDS), SimulatedClock()
    vocab_size = 1 + max(int(max(call.prompt.max(initial=0), call.response.max())) for call in calls)
    target = ReplayTarget(vocab_size, frozenset(), costs, clock)
    curve, calibrator = LiveCurve(costs, MEASURED), Calibrator()
    times: list[float] = []
    drafts = 0
    with SuffixCache() as cache:
        namespace = cache.namespace("bench/driver")
        for call in calls:
            prompt, target.truth = call.prompt if len(call.prompt) else [0], call.response.tolist()
            with namespace.open_session(prompt) as session:
                layers: list[Layer] = [PromptLookupLayer(), SuffixLayer(session)]
                request = Request(prompt, layers, len(target.truth), calibrator=calibrator)
                steps = stream(target, request, DriverConfig(), curve=curve, clock=clock)
                next(steps)  # begins the layers
                while True:
                    prepare()
                    before = time.perf_counter()
                    record: StepRecord | None = next(steps, None)
                    seconds = time.perf_counter() - before
                    if record is None:
                        break
                    times.append(1e6 * seconds)
                    drafts += len(record.token_ids) > 1
    return np.array(times), drafts / max(1, len(times))


def driver_grids(results: Mapping[str, Any]) -> list[Grid]:
    """One row for warm steps and one for cold ones."""
    grid = Grid(["caches", "steps", "with drafts", "p10 us", "p50 us", "p90 us", "mean us"])
    for times in results["times"]:
        numbers = (f"{times[key]:.0f}" for key in ("p10_us", "p50_us", "p90_us", "mean_us"))
        grid.rows.append([times["caches"], f"{times['steps']:,}", f"{times['drafts']:.0%}", *numbers])
    return [grid]
