"""Exactness checks of a generation: forms (a) and (b) of docs/architecture.md.

(a) Recompute every step with the same batches in the same order: the target must reproduce every emitted
    token. A difference is a bug of the driver.
(b) Force the emitted text through the target one token at a time. A backend that rounds differently at
    another batch width may flip a near-tie, so a few differences are allowed where the logits of both tokens
    are close (greedy), or the position's random numbers are close to a boundary (sampling).

In both, penalties and the grammar see the same text as in the generation, and logits are compared with bias
and penalties applied. Distances to cut-offs (top_k, top_p, min_p) and to refusals of the grammar are taken
into account, see :mod:`suffixsvc_driver.sampling.rounding_tolerance`.

For drafted trees, (a) needs a target with one slot, or with empty other slots during the generation: in a
shared KV cache the other texts determine the placement of cells, and thereby the order of summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import GrammarError
from suffixsvc.types import FloatArray
from suffixsvc_driver.decode.loop import Result
from suffixsvc_driver.drafts.tree import rows_of
from suffixsvc_driver.sampling.rounding_tolerance import near_tie_distance
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.targets.single import LlamaTarget

#: largest gap of the two logits of a near-tie (greedy)
MAX_GAP: Final = 0.5
#: largest distance of the position's random numbers from the token's interval (sampling)
MAX_DISTANCE: Final = 0.05
#: largest share of flipped positions
MAX_SHARE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Flip:
    """Position at which another token is sampled at width 1.

    Attributes:
        position: absolute.
        written: the emitted token.
        alone: the token sampled at width 1.
        gap: logit of ``alone`` minus that of ``written``; infinite if the grammar forbids ``written``.
        distance: of the position's random numbers from sampling ``written``; None if greedy.
    """

    position: int
    written: int
    alone: int
    gap: float
    distance: float | None = None

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap <= MAX_GAP if self.distance is None else self.distance <= MAX_DISTANCE


@dataclass(frozen=True, slots=True)
class Exactness:
    """Result of both checks, for one generation or the sum of several.

    Attributes:
        positions: number of checked tokens.
        recomputed_equal: number of tokens that check (a) has reproduced.
        flips: positions that differ in check (b).
        sampled: whether sampling was not greedy.
    """

    positions: int
    recomputed_equal: int
    flips: tuple[Flip, ...]
    sampled: bool = False

    @property
    def same_shapes_exact(self) -> bool:
        """Whether check (a) holds."""
        return self.recomputed_equal == self.positions

    @property
    def largest_gap(self) -> float:
        """Largest gap of the flips; 0 without any."""
        return max((f.gap for f in self.flips), default=0.0)

    @property
    def largest_distance(self) -> float:
        """Largest distance of the flips; 0 without any."""
        return max((f.distance or 0.0 for f in self.flips), default=0.0)

    @property
    def flip_share(self) -> float:
        """Share of positions that flip."""
        return len(self.flips) / self.positions if self.positions else 0.0

    @property
    def near_ties_only(self) -> bool:
        """Whether every flip is a near-tie."""
        return all(flip.near_tie for flip in self.flips)

    @property
    def ok(self) -> bool:
        """Whether (a) and (b) hold.

        One flip is always allowed, since 3 % of a short text is less than a token.
        """
        few = len(self.flips) <= max(1, math.floor(MAX_SHARE * self.positions))
        return self.same_shapes_exact and self.near_ties_only and few

    def __add__(self, other: Exactness) -> Exactness:
        return Exactness(
            self.positions + other.positions,
            self.recomputed_equal + other.recomputed_equal,
            self.flips + other.flips,
            self.sampled or other.sampled,
        )

    def describe(self) -> str:
        """Return a summary of two lines."""
        kind = f"largest distance {self.largest_distance:.4f}, " if self.sampled else ""
        return (
            f"(a) same batches: {self.recomputed_equal} of {self.positions} tokens again, bit for bit\n"
            f"(b) one at a time: {len(self.flips)} flips ({self.flip_share:.1%}), {kind}"
            f"largest gap of the logits that flipped {self.largest_gap:.3f}"
        )


def check_exactness(target: LlamaTarget, result: Result) -> Exactness:
    """Run both checks on a generation.

    This takes about as long as the generation and plain decoding together. Afterwards the target's least
    recently used slot holds this text.
    """
    flips = flips_alone(target, result)
    return Exactness(
        len(result.token_ids), _same_shapes(target, result), tuple(flips), not result.sampling.greedy
    )


def _same_shapes(target: LlamaTarget, result: Result) -> int:
    target.begin(result.prompt_ids[-1:], fresh=True)
    target.replay(result.prefill.history)
    computed = len(result.prompt_ids) - 1
    if target.position > computed:  # the last batch belongs to an earlier, longer text
        target.rewind(computed)
    sampler = target.sampler(result.sampling, result.prompt_ids)
    equal = 0
    for step in result.steps:
        drafted, parents = step.token_ids[1:], step.decision.parents
        shape = [(0, drafted, parents)]
        logits = target.propose(shape)[0]
        rows = rows_of(drafted, parents, step.emitted)
        for i, (row, token) in enumerate(zip(rows, step.emitted, strict=True)):
            equal += sampler.sample(logits[row], step.start + i + 1) == token
            try:
                sampler.accept(token)
            except GrammarError:  # the target cannot have sampled it, and the grammar has no next state
                target.commit(shape, [step.emitted])
                return equal
        target.commit(shape, [step.emitted])
    return equal


def flips_alone(target: LlamaTarget, result: Result) -> list[Flip]:
    """Return the flips of check (b): the text forced through the target one token at a time."""
    target.begin(result.prompt_ids, fresh=True)
    sampler = target.sampler(result.sampling, result.prompt_ids)
    flips = []
    before = result.prompt_ids[-1]
    for position, written in enumerate(result.token_ids, start=len(result.prompt_ids)):
        logits = target.compute((before,))[0]
        alone = sampler.sample(logits, position)
        if alone != written:
            flips.append(_flip(logits, sampler, position, written, alone))
        try:
            sampler.accept(written)
        except GrammarError:
            return flips
        before = written
    return flips


def _flip(logits: FloatArray, sampler: Sampler, position: int, written: int, alone: int) -> Flip:
    greedy = sampler.sampling.greedy
    if sampler.allowed((written,)) == 0:
        return Flip(position, written, alone, math.inf, None if greedy else math.inf)
    adjusted = sampler.adjusted(logits)
    gap = float(adjusted[alone]) - float(adjusted[written])
    if greedy:
        return Flip(position, written, alone, gap)
    distance = near_tie_distance(logits, sampler, position, written, gap=MAX_GAP, share=MAX_DISTANCE)
    return Flip(position, written, alone, gap, distance)
