"""Is what was written really the target's own? The checks (a) and (b) of docs/architecture.md.

(a) Recompute every step with the same batches in the same order: each written token must be the target's
    choice, bit for bit. This fails only if the driver broke something.
(b) Force the written text through the target one token at a time. A backend that rounds differently at
    another batch width may flip a near-tie, so a disagreement is allowed where the two best logits are
    close (greedy) or the position's random number is close to a boundary (sampling), and only rarely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.loop import Result
from suffixsvc_driver.sampling import boundary_distance, choose, top_two_gap
from suffixsvc_driver.targets.llama import LlamaTarget

__all__ = ["Exactness", "Flip", "check_exactness"]

#: a flip is a near-tie up to this gap of the two best logits
MAX_GAP: Final = 0.5
#: ... and, sampled, up to this distance of the position's number from the token's interval
MAX_DISTANCE: Final = 0.05
#: share of positions that may flip
MAX_SHARE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Flip:
    """A position where width 1 chooses another token than was written.

    Attributes:
        position: absolute.
        written, alone: the token written, and the one chosen at width 1.
        gap: of the two best logits at width 1.
        distance: sampled: of the position's number from the written token's interval; greedy: 0.
    """

    position: int
    written: int
    alone: int
    gap: float
    distance: float = 0.0


@dataclass(frozen=True, slots=True)
class Exactness:
    """What the checks found, of one generation or of many added up.

    Attributes:
        positions: tokens checked.
        recomputed_equal: (a): tokens that came out again, bit for bit.
        flips: (b): positions that differ at width 1.
        sampled: whether tokens were sampled rather than greedy.
    """

    positions: int
    recomputed_equal: int
    flips: tuple[Flip, ...]
    sampled: bool = False

    @property
    def same_shapes_exact(self) -> bool:
        """(a) holds."""
        return self.recomputed_equal == self.positions

    @property
    def largest_gap(self) -> float:
        """Of the two best logits, among the flips; 0 without any."""
        return max((f.gap for f in self.flips), default=0.0)

    @property
    def largest_distance(self) -> float:
        return max((f.distance for f in self.flips), default=0.0)

    @property
    def flip_share(self) -> float:
        return len(self.flips) / self.positions if self.positions else 0.0

    @property
    def near_ties_only(self) -> bool:
        """(b) holds but for the share: every flip is a near-tie."""
        if self.sampled:
            return self.largest_distance <= MAX_DISTANCE
        return self.largest_gap <= MAX_GAP

    @property
    def ok(self) -> bool:
        """(a) and (b) hold. One flip is always allowed: 3 % of a short text is less than one token."""
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
        """Two lines for people."""
        kind = f"largest distance {self.largest_distance:.4f}, " if self.sampled else ""
        return (
            f"(a) same batches: {self.recomputed_equal} of {self.positions} tokens again, bit for bit\n"
            f"(b) one at a time: {len(self.flips)} flips ({self.flip_share:.1%}), {kind}"
            f"largest gap of the two best logits {self.largest_gap:.3f}"
        )


def check_exactness(target: LlamaTarget, result: Result) -> Exactness:
    """Recompute a generation both ways. Costs about as much as the generation plus plain decoding, and
    leaves the target's least recently used slot holding this text."""
    flips = _alone(target, result)
    return Exactness(
        len(result.token_ids), _same_shapes(target, result), tuple(flips), not result.sampling.greedy
    )


def _same_shapes(target: LlamaTarget, result: Result) -> int:
    target.begin(result.prompt_ids[-1:], fresh=True)
    target.replay(result.prefill.history)
    equal = 0
    for step in result.steps:
        target.rewind(step.start)
        rows = target.compute(step.token_ids)
        for i, token in enumerate(step.emitted):
            equal += choose(rows[i], result.sampling, step.start + i + 1) == token
    return equal


def _alone(target: LlamaTarget, result: Result) -> list[Flip]:
    target.begin(result.prompt_ids, fresh=True)
    flips = []
    sampling = result.sampling
    before = result.prompt_ids[-1]
    for position, written in enumerate(result.token_ids, start=len(result.prompt_ids)):
        logits = target.compute((before,))[0]
        alone = choose(logits, sampling, position)
        if alone != written:
            distance = 0.0 if sampling.greedy else boundary_distance(logits, sampling, position, written)
            flips.append(Flip(position, written, alone, top_two_gap(logits), distance))
        before = written
    return flips
