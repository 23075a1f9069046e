"""A target that emits recorded text at simulated costs: replays recorded completions without a model."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.types import TokenIds
from suffixsvc_bench.decode.workload.jobs import AnsweredJob
from suffixsvc_bench.speculation.speculator import Speculator, TimedResult
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import StepResult
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets import Prefilled, StopRule


class SimulatedClock:
    """A clock that advances only by the durations added to ``now``, seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds so far."""
        return self.now


class ReplayTarget:
    """A target that emits ``truth`` and advances the clock by the cost of each step."""

    replays = False
    max_branches = 1

    def __init__(
        self, vocab_size: int, eog_ids: frozenset[int], curve: CostCurve, clock: SimulatedClock
    ) -> None:
        self.vocab_size, self.eog_ids = vocab_size, eog_ids
        self.max_width, self.context_size = curve.max_width, 1 << 20
        self.truth: Sequence[int] = ()
        self._curve, self._clock, self._at = curve, clock, 0

    def begin(self, prompt_ids: TokenIds, *, principal: str = "") -> Prefilled:
        """Start at the beginning of ``truth``; the prompt is ignored."""
        self._at = 0
        return Prefilled(0, 0)

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        """A sampler for the vocabulary; its choices are not used."""
        return Sampler(sampling, self.vocab_size)

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Sampler,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> StepResult:
        """Accept the drafted tokens that agree with ``truth``, and emit one more."""
        self._clock.now += self._curve.costs[len(drafted) + 1] * self._curve.seconds_per_step
        ahead = self.truth[self._at : self._at + max_emit]
        accepted = common_prefix(drafted, ahead)
        emitted = tuple(ahead[: accepted + 1])
        self._at += len(emitted)
        return StepResult(emitted, accepted)


def replay_call(
    answered: AnsweredJob, target: ReplayTarget, speculator: Speculator, config: DriverConfig
) -> TimedResult:
    """Replay an answered job with drafts, so that namespace and driver learn what they learned when it was
    answered.

    Args:
        speculator: drives ``target``.
    """
    target.truth = answered.token_ids
    labels = {"agent": answered.job.agent, "session": answered.job.key}
    return speculator.drafted(answered.job.prompt_ids, len(answered.token_ids), config, labels)
