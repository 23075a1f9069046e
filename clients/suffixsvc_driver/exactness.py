"""Is what was written really the target's own? The checks (a) and (b) of docs/architecture.md.

(a) Recompute every step with the same batches in the same order: each written token must be the target's
    choice, bit for bit. This fails only if the driver broke something.
(b) Force the written text through the target one token at a time. A backend that rounds differently at
    another batch width may flip a near-tie, so a disagreement is allowed where the two tokens' logits are
    close (greedy) or the position's random numbers are close to a boundary (sampling), and only rarely.

Both give every position the text before it, as the generation did: penalties and grammar stand where they
stood. Logits are compared with bias and penalties applied. How near a cut-off (top_k, top_p, min_p) or a
refusal of the grammar is, counts too: see :mod:`suffixsvc_driver.near_ties`.

Drafted trees: (a) needs a target with one slot, or with no text in the others while it wrote: in memory that
slots share, what the others hold decides where cells lie, and so in which order sums are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import GrammarError
from suffixsvc.types import FloatArray
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.loop import Result
from suffixsvc_driver.near_ties import near_tie_distance
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.tree import rows_of

__all__ = ["Exactness", "Flip", "check_exactness", "flips_alone"]

#: a flip is a near-tie up to this gap of the two best logits
MAX_GAP: Final = 0.5
#: ... and, sampled, up to this distance of the position's numbers from the token's interval
MAX_DISTANCE: Final = 0.05
#: share of positions that may flip
MAX_SHARE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Flip:
    """A position where width 1 chooses another token than was written.

    Attributes:
        position: absolute.
        written, alone: the token written, and the one chosen at width 1.
        gap: by how much the logit of the token chosen at width 1 exceeds that of the token written;
            infinite for a token that the grammar forbids.
        distance: sampled: of the position's numbers from picking the written token; greedy: None.
    """

    position: int
    written: int
    alone: int
    gap: float
    distance: float | None = None

    @property
    def near_tie(self) -> bool:
        """Rounding explains it."""
        return self.gap <= MAX_GAP if self.distance is None else self.distance <= MAX_DISTANCE


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
        """Of the logits of chosen and written token, among the flips; 0 without any."""
        return max((f.gap for f in self.flips), default=0.0)

    @property
    def largest_distance(self) -> float:
        return max((f.distance or 0.0 for f in self.flips), default=0.0)

    @property
    def flip_share(self) -> float:
        return len(self.flips) / self.positions if self.positions else 0.0

    @property
    def near_ties_only(self) -> bool:
        """(b) holds but for the share: every flip is a near-tie."""
        return all(flip.near_tie for flip in self.flips)

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
            f"largest gap of the logits that flipped {self.largest_gap:.3f}"
        )


def check_exactness(target: LlamaTarget, result: Result) -> Exactness:
    """Recompute a generation both ways. Costs about as much as the generation plus plain decoding, and
    leaves the target's least recently used slot holding this text."""
    flips = flips_alone(target, result)
    return Exactness(
        len(result.token_ids), _same_shapes(target, result), tuple(flips), not result.sampling.greedy
    )


def _same_shapes(target: LlamaTarget, result: Result) -> int:
    target.begin(result.prompt_ids[-1:], fresh=True)
    target.replay(result.prefill.history)
    computed = len(result.prompt_ids) - 1
    if target.position > computed:  # the last batch goes on behind the prompt: an earlier text did
        target.rewind(computed)
    chooser = target.chooser(result.sampling, result.prompt_ids)
    equal = 0
    for step in result.steps:
        drafted, parents = step.token_ids[1:], step.decision.parents
        logits = target.propose(drafted, parents)
        rows = rows_of(drafted, parents, step.emitted)
        for i, (row, token) in enumerate(zip(rows, step.emitted, strict=True)):
            equal += chooser.choose(logits[row], step.start + i + 1) == token
            try:
                chooser.accept(token)
            except GrammarError:  # it cannot have been the target's choice, nor is there a way on from it
                target.settle(drafted, step.emitted, parents)
                return equal
        target.settle(drafted, step.emitted, parents)
    return equal


def flips_alone(target: LlamaTarget, result: Result) -> list[Flip]:
    """Check (b): force the text through the target one token at a time."""
    target.begin(result.prompt_ids, fresh=True)
    chooser = target.chooser(result.sampling, result.prompt_ids)
    flips = []
    before = result.prompt_ids[-1]
    for position, written in enumerate(result.token_ids, start=len(result.prompt_ids)):
        logits = target.compute((before,))[0]
        alone = chooser.choose(logits, position)
        if alone != written:
            flips.append(_flip(logits, chooser, position, written, alone))
        try:
            chooser.accept(written)
        except GrammarError:
            return flips
        before = written
    return flips


def _flip(logits: FloatArray, chooser: Chooser, position: int, written: int, alone: int) -> Flip:
    greedy = chooser.sampling.greedy
    if chooser.allowed((written,)) == 0:
        return Flip(position, written, alone, math.inf, None if greedy else math.inf)
    adjusted = chooser.adjusted(logits)
    gap = float(adjusted[alone]) - float(adjusted[written])
    if greedy:
        return Flip(position, written, alone, gap)
    distance = near_tie_distance(logits, chooser, position, written, gap=MAX_GAP, share=MAX_DISTANCE)
    return Flip(position, written, alone, gap, distance)
