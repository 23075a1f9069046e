"""Layers for tests: scripted, hostile, failing. The loop is the real one, only the drafts are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from suffixsvc.types import Draft, DraftSource, Verified, VerifyCost
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.settings.driver_config import LayerKind, LayerSpec

#: text so far, budget -> draft
Drafter = Callable[[list[int], int], Draft]


class ScriptedLayer:
    """Drafts whatever a function of the text so far says, and keeps what it was told."""

    def __init__(self, drafter: Drafter, name: str = "scripted", kind: LayerKind = LayerKind.SUFFIX) -> None:
        self.spec = LayerSpec(name, kind)
        self.drafter = drafter
        self.text: list[int] = []
        self.asked: list[tuple[int, Verified | None]] = []
        self.ended = False

    def begin(self, prompt_ids: Sequence[int], cost: VerifyCost) -> None:
        self.text = list(prompt_ids)

    def draft(self, new_token_ids: Sequence[int], query: QueryLayer) -> Draft:
        self.text.extend(new_token_ids)
        self.asked.append((query.budget, query.verified))
        return self.drafter(self.text, query.budget)

    def end(self, new_token_ids: Sequence[int], verified: Verified | None) -> None:
        self.text.extend(new_token_ids)
        self.ended = True


def chain(tokens: Sequence[int], prob: float = 0.9, source: DraftSource = DraftSource.NAMESPACE) -> Draft:
    return Draft.chain(tokens, [prob] * len(tokens), source)


def half_right(truth: Sequence[int]) -> Drafter:
    """The next token, then wrong ones: never accepted whole."""

    def draft(text: list[int], budget: int) -> Draft:
        ahead = list(truth[len(text) : len(text) + min(budget, 4)])
        return chain([token if i == 0 else (token + 1) % 256 for i, token in enumerate(ahead)])

    return draft


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


def tree(
    tokens: Sequence[int],
    parents: Sequence[int],
    probs: Sequence[float],
    source: DraftSource = DraftSource.NAMESPACE,
) -> Draft:
    n = len(tokens)
    return Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array(probs, np.float32),
        np.full(n, int(source), np.uint8),
        np.zeros(n, np.int32),
    )


def hostile_tree_drafter(rng: np.random.Generator, truth: Sequence[int], vocab_size: int) -> Drafter:
    """Trees that hold the truth somewhere, up to a random depth, among wrong branches that may look better;
    sometimes with what is no tree, no token, no probability, or twice the same token behind one parent."""

    def draft(text: list[int], budget: int) -> Draft:
        ahead = list(truth[len(text) :])
        tokens: list[int] = []
        parents: list[int] = []
        true_path = [-1]
        for _ in range(int(rng.integers(0, 24))):
            if len(true_path) <= len(ahead) and rng.random() < 0.5:
                parents.append(true_path[-1])
                tokens.append(ahead[len(true_path) - 1])
                true_path.append(len(tokens) - 1)
            else:
                parents.append(int(rng.integers(-1, len(tokens))) if tokens else -1)
                tokens.append(int(rng.integers(0, vocab_size)))
        probs = rng.random(len(tokens)) ** 0.3
        kind = rng.integers(0, 10)
        if tokens and kind < 4:
            i = int(rng.integers(len(tokens)))
            if kind == 0:
                tokens[i] = vocab_size + 5
            elif kind == 1:
                parents[i] = len(tokens)
            elif kind == 2:
                probs[i] = np.nan
            else:
                tokens.append(tokens[i])
                parents.append(parents[i])
                probs = np.append(probs, 0.9)
        return tree(tokens, parents, probs.tolist())

    return draft
