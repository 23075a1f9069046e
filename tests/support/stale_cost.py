"""Simulated machine: steps take the time of a table, and the driver decides by its own estimate
of that table.

No model runs: the text is given, and time is a number. The driver observes noisy seconds, with a few per
cent of scatter and occasional disturbed steps; results count the seconds without noise, so that only
decisions are compared.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from suffixsvc.engine import SuffixCache
from suffixsvc.types import Draft, DraftSource, TokenIds, Verified, VerifyCost
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.loop import generate, stream
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import QueryLayer, StepResult
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec
from suffixsvc_driver.targets import Prefilled, StopRule

RECORDED = Path(__file__).parents[1] / "data" / "recorded_demo.jsonl.gz"
VOCAB = 1 << 18
#: relative seconds that 1000 tokens of context add to a step, and the context of the measurement
PER_THOUSAND, MEASURED_CONTEXT = 0.03, 768
#: of a step's seconds on a shared machine: scatter around the median, share of disturbed steps
#: and their factor
SCATTER, DISTURBED, SLOWER = 0.04, 0.02, (2.0, 3.0)

Curve = CostCurve | LiveCurve


def seconds_of(plain: float, costs: dict[int, float]) -> tuple[float, ...]:
    """Return the seconds by width from the costs of some widths, as in a measured curve."""
    return CostCurve.from_samples({1: 1.0, **costs}, seconds_per_step=plain).seconds


#: measured seconds of steps: 1.5B and 0.5B models on two threads and one, and an assumed GPU
SHAPES = {
    "1.5B on 2 threads": seconds_of(0.0295, {2: 1.7, 4: 2.7, 8: 5.8, 10: 7.65, 16: 6.7, 32: 12.8}),
    "1.5B on 1 thread": seconds_of(0.046, {2: 2.2, 4: 4.4, 8: 7.8, 16: 8.2, 32: 14.0}),
    "0.5B on 2 threads": seconds_of(0.022, {2: 1.9, 4: 2.5, 8: 3.9, 16: 6.3, 32: 11.0}),
    "0.5B on 1 thread": seconds_of(0.035, {2: 2.25, 4: 3.05, 8: 4.98, 16: 7.6, 24: 9.6, 32: 12.1}),
    "GPU": tuple(0.03 * (1 + 0.01 * (width - 1)) for width in range(65)),
}
#: a machine when its curve was stored, and an hour later: a plain step took 36.3 ms, and then 27.5 ms
KEPT_ONCE = seconds_of(0.0363, {2: 1.57, 4: 2.39, 8: 3.94, 16: 4.76, 32: 8.4})
FOUND_LATER = seconds_of(0.0275, {2: 1.94, 4: 3.18, 8: 5.17, 16: 5.75, 32: 10.5})


@dataclass(frozen=True)
class Step:
    """One step: the number of tokens so far and the expected number of new ones; seconds without noise."""

    width: int
    written: int
    expected: float
    seconds: float


@dataclass
class Clock:
    """Clock that steps advance."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Noise:
    """Factors of the seconds of consecutive steps; those of one step are the same in all runs of a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._factors: list[float] = []

    def __getitem__(self, step: int) -> float:
        while len(self._factors) <= step:
            scatter, slower = self._rng.normal(0, SCATTER), self._rng.uniform(*SLOWER)
            self._factors.append(float(np.exp(scatter)) * (slower if self._rng.random() < DISTURBED else 1.0))
        return self._factors[step]


noise_of = cache(Noise)


@dataclass
class Machine:
    """Target that emits a given text.

    Attributes:
        seconds: of a step by width; the position in the text adds to it.
        text: the text.
        offered: draft that a scripted layer offered in this step.
        sure: probability of each of its tokens.
    """

    seconds: Sequence[float]
    seed: int
    clock: Clock = field(default_factory=Clock)
    text: Sequence[int] = ()
    steps: list[Step] = field(default_factory=list)
    offered: Sequence[int] = ()
    sure: float = 0.0
    vocab_size: int = VOCAB

    eog_ids = frozenset[int]()
    replays = False
    max_branches = 1
    context_size = 1 << 20

    def __post_init__(self) -> None:
        self._noise = noise_of(self.seed)
        self._at = self._prompt = self._written = 0

    @property
    def max_width(self) -> int:
        return len(self.seconds) - 1

    def begin(self, prompt_ids: TokenIds, *, principal: str = "") -> Prefilled:
        self._at, self._prompt = 0, len(prompt_ids)
        return Prefilled(0, 0)

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        return Sampler(sampling, self.vocab_size)

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Sampler,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> StepResult:
        width = len(drafted) + 1
        behind = (self._prompt + self._at - MEASURED_CONTEXT) / 1000
        taken = self.seconds[width] * (1.0 + PER_THOUSAND * behind)
        self.clock.now += taken * self._noise[len(self.steps)]
        ahead = self.text[self._at : self._at + min(max_emit, width)]
        accepted = common_prefix(drafted, ahead)
        emitted = tuple(ahead[: accepted + 1])
        self._at += len(emitted)
        self._written += len(emitted)
        expected = _expected_tokens(self.sure, common_prefix(drafted, self.offered))
        self.steps.append(Step(width, self._written, expected, taken))
        self.offered = ()
        return StepResult(emitted, accepted)


def _expected_tokens(sure: float, drafted: int) -> float:
    """Of a step with a draft: the sum of ``sure**n`` for n from 0 to ``drafted``."""
    return 1.0 if not drafted else (1.0 - sure ** (drafted + 1)) / (1.0 - sure)


@dataclass(frozen=True)
class Luck:
    """Consecutive steps with similar drafts: probability of a token, and how often there is a draft."""

    steps: int
    sure: float
    offered: float = 1.0


HOT, COLD = Luck(10, 0.97), Luck(10, 0.1, 0.3)
MIDDLING, WEAK = Luck(10, 0.85), Luck(10, 0.75)


@cache
def drawn(seed: int, step: int, luck: Luck) -> tuple[float, int, list[bool], bool]:
    """Of the draft of a step: the probability and the number of its tokens, which of them are right, and
    whether there is one. They depend on the step, so that two runs get the same drafts."""
    rng = np.random.default_rng((seed, step))
    sure = min(0.99, max(0.02, float(rng.normal(luck.sure, 0.06))))
    length = int(rng.integers(4, 32))
    right = rng.random(32) < sure
    return sure, length, right.tolist(), rng.random() < luck.offered


@cache
def random_text(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, VOCAB - 2, tokens).tolist()


class MadeUpLayer:
    """Layer that drafts the true text with errors, at the probabilities that it gives."""

    def __init__(self, machine: Machine, lucks: Sequence[Luck], seed: int) -> None:
        self.spec = LayerSpec("made-up", LayerKind.SUFFIX)
        self._machine, self._seed, self._written = machine, seed, 0
        self._lucks = [luck for luck in lucks for _ in range(luck.steps)]

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        pass

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        self._written += len(new_token_ids)
        step = len(self._machine.steps)
        sure, length, right, offered = drawn(self._seed, step, self._lucks[step % len(self._lucks)])
        length = min(query.budget, length)
        if not offered or length < 1:
            return Draft.empty()
        ahead = self._machine.text[self._written : self._written + length]
        tokens = [token if ok else token + 1 for token, ok in zip(ahead, right[:length], strict=True)]
        self._machine.offered, self._machine.sure = tokens, sure
        return Draft.chain(tokens, [sure] * length, DraftSource.NAMESPACE)

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        pass


Workload = Callable[[Machine, Curve], None]


def made_up(*lucks: Luck, steps: int = 300) -> Workload:
    """Return a generation of steps of these kinds in turn."""

    def run(machine: Machine, curve: Curve) -> None:
        machine.text = random_text(machine.seed, 40 * steps)
        layer = MadeUpLayer(machine, lucks, machine.seed)
        prompt = [1] * MEASURED_CONTEXT
        written = stream(
            machine, Request(prompt, [layer], len(machine.text)), curve=curve, clock=machine.clock
        )
        for _ in islice(written, steps):
            pass
        written.close()

    return run


def recorded(calls: int) -> Workload:
    """Return recorded calls of agents with a user's layers."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, calls)]

    def run(machine: Machine, curve: Curve) -> None:
        calibrators: dict[str, Calibrator] = {}
        with SuffixCache() as cache:
            memory = cache.namespace("recorded")
            for row in rows:
                machine.text = row["response_token_ids"]
                with memory.open_session(row["prompt_token_ids"]) as session:
                    generate(
                        machine,
                        row["prompt_token_ids"],
                        None,
                        [PromptLookupLayer(), SuffixLayer(session)],
                        len(machine.text),
                        curve=curve,
                        calibrator=calibrators.setdefault(row["agent"], Calibrator()),
                        clock=machine.clock,
                    )

    return run


LUCKS = {
    "hot": (HOT,),
    "cold": (COLD,),
    "middling": (MIDDLING,),
    "weak": (WEAK,),
    "mixed": (COLD, HOT, MIDDLING),
}
MADE_UP = {name: made_up(*lucks) for name, lucks in LUCKS.items()}


def run_workload(workload: Workload, truth: Sequence[float], curve: Curve, seed: int) -> list[Step]:
    """Run a workload where steps take ``truth`` and the driver starts from ``curve``."""
    machine = Machine(truth, seed)
    workload(machine, curve)
    return machine.steps


def slowdown(steps: Sequence[Step], than: Sequence[Step], *, after: int) -> float:
    """Return the seconds per expected token relative to another run of scripted steps."""

    def each(of: Sequence[Step]) -> float:
        return sum(s.seconds for s in of[after:]) / sum(s.expected for s in of[after:])

    return each(steps) / each(than)


def slowdown_of_text(steps: Sequence[Step], than: Sequence[Step], *, after: int) -> float:
    """Return the relative time of two runs over the same text, after both have taken so many steps."""
    assert steps[-1].written == than[-1].written
    since = max(steps[after - 1].written, than[after - 1].written)
    return _seconds_from(steps, since) / _seconds_from(than, since)


def _seconds_from(steps: Sequence[Step], since: int) -> float:
    i = bisect.bisect_left(steps, since, key=lambda step: step.written)
    before = steps[i - 1].written
    share = (steps[i].written - since) / (steps[i].written - before)
    return share * steps[i].seconds + sum(step.seconds for step in steps[i + 1 :])
