"""Simulated machine with shared batches: see :mod:`support.stale_cost`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from suffixsvc.types import Draft, DraftSource, TokenIds, Verified, VerifyCost
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.parallel import generate_many
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import QueryLayer, StepResult, TokenLogprobs
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec
from suffixsvc_driver.targets import LaneStep
from support.stale_cost import SCATTER, VOCAB, Clock


@dataclass
class SharedMachine:
    """Target with lanes that emits a given text on each lane.

    Attributes:
        seconds: of a batch by width.
        widths: of every batch, tokens without drafts and with them.
        taken: seconds of all batches, without noise.
    """

    seconds: Sequence[float]
    lanes: int
    seed: int
    clock: Clock = field(default_factory=Clock)
    widths: list[tuple[int, int]] = field(default_factory=list)
    taken: float = 0.0

    vocab_size = VOCAB
    eog_ids = frozenset[int]()
    replays = False
    max_branches = 1
    shares_prefixes = False
    context_size = 1 << 20

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self.texts: list[list[int]] = []
        self._text: dict[int, list[int]] = {}
        self._at: dict[int, int] = {}

    @property
    def max_width(self) -> int:
        return len(self.seconds) - 1

    def check(self, prompt_ids: TokenIds) -> None:
        pass

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int], principal: str = "") -> int:
        return free[0]

    def missing(self, lane: int, prompt_ids: Sequence[int], principal: str = "") -> int:
        return 0

    def begin(self, lane: int, prompt_ids: TokenIds, principal: str = "", *, fresh: bool = False) -> int:
        self._text[lane], self._at[lane] = self.texts[int(prompt_ids[0])], 0
        return 0

    def park(self, lanes: Iterable[int]) -> None:
        pass

    def prefill(self, lane: int) -> int:
        return 0

    def score(self, lane: int, count: int) -> tuple[int, list[TokenLogprobs]]:
        raise NotImplementedError

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        return Sampler(sampling, self.vocab_size)

    def verify_many(self, steps: Sequence[LaneStep]) -> list[StepResult | Exception]:
        width = sum(1 + len(step.drafted) for step in steps)
        self.widths.append((len(steps), width))
        self.taken += self.seconds[width]
        self.clock.now += self.seconds[width] * float(np.exp(self._rng.normal(0, SCATTER)))
        found: list[StepResult | Exception] = []
        for step in steps:
            at = self._at[step.lane]
            ahead = self._text[step.lane][at : at + step.max_emit]
            accepted = common_prefix(step.drafted, ahead)
            emitted = tuple(ahead[: accepted + 1])
            self._at[step.lane] = at + len(emitted)
            found.append(StepResult(emitted, accepted))
        return found


class SureLayer:
    """Layer that drafts the true text, each token right with the probability that it gives."""

    def __init__(self, text: Sequence[int], sure: float, seed: int) -> None:
        self.spec = LayerSpec("sure", LayerKind.SUFFIX)
        self._text, self._sure, self._written = text, sure, 0
        self._rng = np.random.default_rng(seed)

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        pass

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        self._written += len(new_token_ids)
        ahead = self._text[self._written : self._written + min(query.budget, 8)]
        right = self._rng.random(len(ahead)) < self._sure
        tokens = [token if ok else token + 1 for token, ok in zip(ahead, right, strict=True)]
        return Draft.chain(tokens, [self._sure] * len(tokens), DraftSource.NAMESPACE)

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        pass


def shared(seconds: Sequence[float], live: LiveCurve, *, lanes: int, tokens: int, seed: int) -> SharedMachine:
    """Run one generation of so many tokens per lane, where steps take ``seconds``."""
    machine = SharedMachine(seconds, lanes, seed)
    rng = np.random.default_rng(seed)
    requests = []
    for lane in range(lanes):
        machine.texts.append(rng.integers(2, VOCAB - 2, tokens).tolist())
        requests.append(Request([lane, 1], [SureLayer(machine.texts[lane], 0.97, seed + lane)], tokens))
    run = generate_many(machine, requests, curve=live, clock=machine.clock)
    assert [len(result.token_ids) for result in run.results] == [tokens] * lanes, run.outcomes
    return machine
