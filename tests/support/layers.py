"""Layers for tests: scripted, hostile, failing. The loop is the real one, only the drafts are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from suffixsvc_driver.config import LayerKind, LayerSpec
from suffixsvc_driver.events import Feedback

from suffixsvc.types import Draft, DraftSource, VerifyCost

#: text so far, budget -> draft
Drafter = Callable[[list[int], int], Draft]


class ScriptedLayer:
    """Drafts whatever a function of the text so far says, and keeps what it was told."""

    def __init__(self, drafter: Drafter, name: str = "scripted", kind: LayerKind = LayerKind.SUFFIX) -> None:
        self.spec = LayerSpec(name, kind)
        self.drafter = drafter
        self.text: list[int] = []
        self.asked: list[tuple[int, Feedback | None]] = []
        self.ended = False

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self.text = list(prompt_ids)

    def draft(self, new_token_ids: Sequence[int], budget: int, verified: Feedback | None) -> Draft:
        self.text.extend(new_token_ids)
        self.asked.append((budget, verified))
        return self.drafter(self.text, budget)

    def end(self, new_token_ids: Sequence[int], verified: Feedback | None) -> None:
        self.text.extend(new_token_ids)
        self.ended = True


def chain(tokens: Sequence[int], prob: float = 0.9, source: DraftSource = DraftSource.NAMESPACE) -> Draft:
    return Draft.chain(tokens, [prob] * len(tokens), source)


def hostile_drafter(rng: np.random.Generator, truth: Sequence[int], vocab_size: int) -> Drafter:
    """Mostly right, wrong where it hurts: a true prefix of random length, then noise; sometimes nothing,
    sometimes ids outside the vocabulary, sometimes probabilities that are none."""

    def draft(text: list[int], budget: int) -> Draft:
        ahead = list(truth[len(text) :])
        right = int(rng.integers(0, 20))
        noise = rng.integers(0, vocab_size, size=int(rng.integers(0, 12))).tolist()
        tokens = np.array([*ahead[:right], *noise], np.int32)
        probs = rng.random(len(tokens)).astype(np.float32) ** 0.1
        kind = rng.integers(0, 8)
        if kind == 0:
            return Draft.empty()
        if kind == 1 and len(tokens):
            tokens[rng.integers(len(tokens))] = vocab_size + 5
        if kind == 2 and len(tokens):
            probs[rng.integers(len(tokens))] = np.nan
        return Draft.chain(tokens, probs, DraftSource.NAMESPACE)

    return draft
