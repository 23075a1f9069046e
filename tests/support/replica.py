"""Simulated generation around the state machine: a given text, scripted layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import (
    Begin,
    Decision,
    Event,
    Finish,
    LayerAnswer,
    LayerFailed,
    QueryLayer,
    StepResult,
    Verify,
)
from suffixsvc_driver.drafts.tree import follow
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine

VOCAB = 50
EOG = 0
#: two cores: steep, with a width that is cheaper than a narrower one
TWO_CORES = CostCurve((0, 1, 1.9, 2.3, 2.7, 3.5, 4.2, 5.0, 5.8, 7.0, 7.6, 7.6, 7.6, 7.6, 7.6, 7.4, 6.7), 0.03)
GPU = CostCurve.linear(0.01, 64, seconds_per_step=0.03)
LOOKUP = LayerSpec("lookup", LayerKind.PROMPT_LOOKUP)
SUFFIX = LayerSpec("suffix", LayerKind.SUFFIX)
OTHER = LayerSpec("other", LayerKind.SUFFIX)  # another memory layer
MODEL = LayerSpec("model", LayerKind.DRAFT_MODEL, seconds_per_token=0.002)

Answer = Callable[[QueryLayer, list[int]], Draft | None]


class Replica:
    """Plays layers and target around the state machine: the text is given, and a function answers for the
    layers; None is a failure."""

    def __init__(
        self, driver: GenerationStateMachine, truth: list[int], answer: Answer, *, seconds: float = 0.0
    ) -> None:
        self.driver, self.truth, self.answer, self.seconds = driver, truth, answer, seconds
        self.written: list[int] = []
        self.trace: list[tuple[Event, Decision]] = []
        self.widths: list[int] = []

    def run(self, begin: Begin) -> Finish:
        decision = self.feed(begin)
        while not isinstance(decision, Finish):
            if isinstance(decision, QueryLayer):
                draft = self.answer(decision, self.written)
                decision = self.feed(
                    LayerFailed(decision.layer, "made up", self.seconds)
                    if draft is None
                    else LayerAnswer(decision.layer, draft, self.seconds)
                )
            else:
                decision = self.feed(self.verify(decision, begin))
        return decision

    def verify(self, decision: Verify, begin: Begin) -> StepResult:
        ahead = self.truth[len(self.written) :]
        accepted = len(follow(decision.token_ids, decision.parents, ahead))
        emitted = ahead[: accepted + 1][: begin.max_tokens - len(self.written)]
        if EOG in emitted:
            emitted = emitted[: emitted.index(EOG) + 1]
        self.widths.append(1 + len(decision.token_ids))
        self.written.extend(emitted)
        return StepResult(tuple(emitted), accepted, 1 + len(decision.token_ids))

    def feed(self, event: Event) -> Decision:
        decision = self.driver.on(event)
        self.trace.append((event, decision))
        return decision


def begin(max_tokens: int = 60, prompt_length: int = 10, context_size: int = 4096) -> Begin:
    return Begin(prompt_length, max_tokens, context_size, VOCAB, frozenset({EOG}))


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCAB, n).tolist()


def chain(tokens: list[int], prob: float, source: DraftSource = DraftSource.NAMESPACE) -> Draft:
    return Draft.chain(tokens, [prob] * len(tokens), source)


def oracle(truth: list[int], right: int = 99, prob: float = 0.95) -> Answer:
    """Return a layer that drafts the first ``right`` tokens of the truth, then a wrong one."""

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        ahead = truth[len(written) :][: query.budget]
        tokens = [t if i < right else (t % (VOCAB - 1)) + 1 for i, t in enumerate(ahead)]
        return chain(tokens, prob) if tokens else Draft.empty()

    return answer
