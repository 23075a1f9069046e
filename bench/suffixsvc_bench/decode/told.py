"""A target that writes what it is told: calls are lived through once more as they were, without a model."""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets import Prefilled, StopRule, Verification

from suffixsvc.types import TokenIds
from suffixsvc_bench.decode.jobs import Written
from suffixsvc_bench.speculator import Speculator, Spoken

__all__ = ["AddedUpClock", "ToldTarget", "live_through"]


class AddedUpClock:
    """Time as prices add up to it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ToldTarget:
    """A target that writes a text it is told, and takes the time that the prices say."""

    replays = False
    max_branches = 1

    def __init__(
        self, vocab_size: int, eog_ids: frozenset[int], curve: CostCurve, clock: AddedUpClock
    ) -> None:
        self.vocab_size, self.eog_ids = vocab_size, eog_ids
        self.max_width, self.context_size = curve.max_width, 1 << 20
        self.truth: Sequence[int] = ()
        self._curve, self._clock, self._at = curve, clock, 0

    def begin(self, prompt_ids: TokenIds) -> Prefilled:
        self._at = 0
        return Prefilled(0, 0)

    def chooser(self, sampling: Sampling, prompt_ids: TokenIds) -> Chooser:
        return Chooser(sampling, self.vocab_size)

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Chooser,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> Verification:
        self._clock.now += self._curve.costs[len(drafted) + 1] * self._curve.seconds_per_step
        ahead = self.truth[self._at : self._at + max_emit]
        accepted = 0
        while accepted < min(len(drafted), len(ahead)) and drafted[accepted] == ahead[accepted]:
            accepted += 1
        emitted = tuple(ahead[: accepted + 1])
        self._at += len(emitted)
        return Verification(emitted, accepted)


def live_through(
    written: Written, target: ToldTarget, speculator: Speculator, config: DriverConfig
) -> Spoken:
    """Answer a call as it was answered, with drafts: memory, and what the driver knows of its layers, learn
    what they learned then.

    Args:
        speculator: of this target.
    """
    target.truth = written.token_ids
    labels = {"agent": written.job.agent, "session": written.job.key}
    return speculator.drafted(written.job.prompt_ids, len(written.token_ids), config, labels)
