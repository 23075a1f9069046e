"""Views of saved learners as arrays, and learners that were taught generated texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index, Learner, Session, draft_from

Floats = npt.NDArray[np.float32]

#: sizes of the tables (learner.cpp: kFeatures, kCostClasses, kSets * kInputs, kFinalSets * kFinalWeights)
FEATURES, GAINS, WEIGHTS, FINAL = 19_936, 24, 875 * 27, 48 * 4
MAGIC = 8  #: bytes of the header of save()
LIMIT = np.float32(200)  #: of a counter


@dataclass
class Tables:
    """The tables of a learner. A counter is a row (right, seen)."""

    features: Floats
    gains: Floats
    weights: Floats  #: of the mixers, then those of the final one

    @staticmethod
    def of(learner: Learner | bytes) -> Tables:
        saved = learner if isinstance(learner, bytes) else learner.save()
        numbers = np.frombuffer(saved[MAGIC:], "<f4").copy()
        assert len(numbers) == 2 * (FEATURES + GAINS) + WEIGHTS + FINAL
        features, gains, weights = np.split(numbers, [2 * FEATURES, 2 * (FEATURES + GAINS)])
        return Tables(features.reshape(-1, 2), gains.reshape(-1, 2), weights)

    def learner(self) -> Learner:
        numbers = np.concatenate([self.features.ravel(), self.gains.ravel(), self.weights])
        learner = Learner()
        assert learner.load(Learner().save()[:MAGIC] + numbers.astype("<f4").tobytes())
        return learner


def learner_of(saved: bytes) -> Learner:
    learner = Learner()
    assert learner.load(saved)
    return learner


def agent_texts(seed: int, count: int, first_token: int = 0, kind: int = 0) -> list[npt.NDArray[np.int32]]:
    """Texts as agents write them: phrases of a fixed set, some often continued by the same next one, with
    values in between that differ. ``kind`` chooses the phrases, ``seed`` the texts."""
    fixed, random = np.random.default_rng([kind, 17]), np.random.default_rng([kind, seed])
    phrases = [first_token + fixed.integers(0, 90, fixed.integers(3, 14)) for _ in range(12)]
    follows = fixed.integers(0, len(phrases), len(phrases))
    texts = []
    for _ in range(count):
        at, pieces = int(random.integers(len(phrases))), []
        for _ in range(16):
            pieces += [phrases[at], first_token + random.integers(90, 200, random.integers(0, 3))]
            at = int(follows[at]) if random.random() < 0.7 else int(random.integers(len(phrases)))
        texts.append(np.concatenate(pieces).astype(np.int32))
    return texts


def replay(
    learner: Learner, texts: Sequence[npt.NDArray[np.int32]], index: Index, writer: int
) -> list[float]:
    """Write texts into an index, drafting and learning. Returns the log loss of each drafted token that was
    verified: -ln of the probability of what happened to it, given that those before it were accepted."""
    curve = 1.0 + 0.02 * np.arange(17, dtype=np.float64)
    losses = []
    for i, text in enumerate(texts):
        session = Session(index, [], learner, writer + i, 16)
        session.append_context(text[:8])
        at = 8
        while at < len(text):
            draft = draft_from(session, 16, curve)
            probs = np.clip(np.asarray(draft.probs, np.float64), 1e-4, 1 - 1e-4)
            ahead = text[at : at + len(probs)]
            same = np.asarray(draft.token_ids)[: len(ahead)] == ahead
            accepted = int(np.argmin(same)) if not same.all() else len(same)
            losses += (-np.log(probs[:accepted])).tolist()
            if accepted < len(same):
                losses.append(float(-np.log(1 - probs[accepted])))
            new = text[at : at + accepted + 1]
            session.record_step(float(curve[len(probs)]), len(new))
            session.append(new, True)
            at += len(new)
    return losses
