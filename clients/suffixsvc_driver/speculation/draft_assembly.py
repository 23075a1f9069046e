"""Draft of one step as a chain: the candidates of the layers and the best prefix so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import Considered, Propose, Verify
from suffixsvc_driver.policy.chain_gain import MIN_GAIN, Choice, Headroom, best_prefix

__all__ = ["FILLER", "Candidate", "StepDraft", "describe_continuation"]

_NONE: Final = int(DraftSource.NONE)
#: padding of a batch without drafts: a token of every vocabulary
FILLER: Final = (0,)
#: divisor of the odds of every token of a chain. The maximum over all prefixes of all chains is biased
#: upwards (the optimizer's curse): on recorded calls this is 2 % faster at the costs of two cores, 1 % where
#: a token costs a tenth of a step, and costs nothing on a GPU
_ODDS_DIVISOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """Calibrated draft of a layer: a chain, or a tree with ``parents``.

    Attributes:
        layer: name of the layer.
        token_ids: drafted tokens.
        sources: DraftSource number of each token.
        probs: calibrated probability of each token.
        continued_by: layer of the tokens from index ``continued_at`` on; "" if there is none.
        continued_at: see ``continued_by``.
        parents: of a tree, index of each token's parent.
    """

    layer: str
    token_ids: tuple[int, ...]
    sources: tuple[int, ...]
    probs: tuple[float, ...]
    continued_by: str = ""
    continued_at: int = 0
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)

    def tail(self, at: int) -> Candidate:
        """Return the chain without its first ``at`` tokens."""
        return replace(self, token_ids=self.token_ids[at:], sources=self.sources[at:], probs=self.probs[at:])

    def then(self, other: Candidate, at: int) -> Candidate:
        """Return the first ``at`` tokens of this chain, followed by ``other``."""
        return Candidate(
            self.layer,
            self.token_ids[:at] + other.token_ids,
            self.sources[:at] + other.sources,
            self.probs[:at] + other.probs,
            other.layer,
            at,
        )


_EMPTY: Final = Candidate("", (), (), ())


class StepDraft:
    """Draft of one step: the best prefix of the layers' candidates.

    Args:
        curve: current cost of the target's steps.
        rate: tokens per unit of cost so far.
        headroom: limits of the draft.

    Attributes:
        choice: best prefix so far.
        candidate: the chain of ``choice``.
    """

    __slots__ = ("_candidates", "_considered", "_forced", "candidate", "choice", "curve", "headroom", "rate")

    def __init__(self, curve: CostCurve, rate: float, headroom: Headroom) -> None:
        self.curve, self.rate, self.headroom = curve, rate, headroom
        self.choice = Choice()
        self.candidate = _EMPTY
        self._forced = False
        self._candidates: list[Candidate] = []
        self._considered: list[Considered] = []

    @property
    def gain(self) -> float:
        """Expected gain of the best prefix so far, tokens."""
        return self.choice.gain

    @property
    def continuable_gain(self) -> float:
        """Expected gain of the part that a layer may continue, tokens."""
        return self.choice.gain

    def record_skip(self, layer: str, why: str) -> None:
        """Record why a layer contributes nothing."""
        self._considered.append(Considered(layer, 0, why))

    def consider(
        self, candidate: Candidate, budget: int, after: tuple[int, ...] = (), *, suggested: int = 0
    ) -> None:
        """Replace the draft by the best prefix of a chain if that gains more.

        Args:
            budget: tokens that were queried.
            after: tokens of :attr:`candidate` that the chain continues.
            suggested: number of following tokens of :attr:`candidate` that were suggested to the layer.
        """
        candidate = replace(candidate, probs=tuple(map(_discounted, candidate.probs)))
        if after:
            candidate = self.candidate.then(candidate, len(after))
        if suggested:
            candidate = self._reconcile(candidate)
        self._candidates.append(candidate)
        self._record(candidate, budget, describe_continuation(after, suggested), self._take_best(candidate))

    def _take_best(self, candidate: Candidate) -> Choice:
        """Return the best prefix of a chain, and take it if it gains more than the draft."""
        choice = best_prefix(candidate.probs, self.curve, self.rate, self.headroom)
        if choice.gain > max(self.choice.gain, MIN_GAIN):
            self.choice, self.candidate = choice, candidate
        return choice

    def _reconcile(self, candidate: Candidate) -> Candidate:
        """Reconcile the probabilities of a chain drafted with suggestions with those of earlier candidates.

        Common tokens get the larger probability and stay with the earlier layer. At the first difference at
        most one token is right. On recorded calls the draft model (a 0.5B for a 1.5B of its family) was right
        in 224 of 287 such positions and memory in 6, even where memory was more confident; so the earlier
        token gets at most the probability that the draft model leaves.
        """
        probs = list(candidate.probs)
        owner, at = candidate, 0
        for i, earlier in enumerate(self._candidates):
            agreed = common_prefix(candidate.token_ids, earlier.token_ids)
            common = tuple(map(max, candidate.probs[:agreed], earlier.probs[:agreed]))
            probs[:agreed] = map(max, probs[:agreed], common)
            rest = earlier.probs[agreed:]
            if rest and len(candidate) > agreed:
                rest = (min(rest[0], 1.0 - candidate.probs[agreed]), *rest[1:])
            self._candidates[i] = replace(earlier, probs=common + rest)
            if agreed > at:
                owner, at = self._candidates[i], agreed
        self.choice, self.candidate = Choice(), _EMPTY
        for each in self._candidates:
            self._take_best(each)
        candidate = replace(candidate, probs=tuple(probs))
        return owner.then(candidate.tail(at), at) if at else candidate

    def take(self, candidate: Candidate, length: int, budget: int) -> None:
        """Take the first ``length`` tokens of a chain whatever their gain (first-match)."""
        choice = Choice(length, length + 1)
        self._record(candidate, budget, "", choice)
        self.choice, self.candidate, self._forced = choice, candidate, True

    def propose(self) -> Propose:
        """Return the gains of the whole draft, for a shared batch.

        How much of it pays depends on the drafts of the other generations.
        """
        if not self.choice.length and self._candidates:
            self.candidate = max(self._candidates, key=lambda candidate: sum(self._gains(candidate)))
        if self._forced:
            return Propose((1.0,) * self.choice.length, forced=True)
        return Propose(self._gains(self.candidate))

    def _gains(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the gain of each token, as in :func:`best_prefix`."""
        gains, path, headroom = [], 1.0, self.headroom
        for length, p in enumerate(
            candidate.probs[: max(0, min(headroom.limit, headroom.room - 1))], start=1
        ):
            again = 0.0
            if headroom.replays:
                again = path * (1.0 - p) * (self.curve.cost(1 + headroom.other_tokens + length) - 1.0)
            path *= p
            gains.append(path - self.rate * again)
        return tuple(gains)

    def _record(self, candidate: Candidate, budget: int, how: str, choice: Choice) -> None:
        name = candidate.continued_by or candidate.layer
        self._considered.append(
            Considered(
                name,
                budget,
                "",
                candidate.token_ids,
                candidate.probs,
                choice.length,
                choice.width,
                choice.gain,
                how=how,
            )
        )

    def decide(self) -> Verify:
        """Return the draft to send."""
        return self.cut(self.choice.length, self.choice.width - 1 - self.choice.length)

    def cut(self, length: int, padding: int) -> Verify:
        """Return the first ``length`` tokens of the draft, followed by ``padding`` filler tokens."""
        plain = Verify(considered=tuple(self._considered), rate=self.rate)
        if not length + padding:
            return plain
        candidate, n = self.candidate, length
        tokens = candidate.token_ids[:n]
        continued = bool(candidate.continued_by) and n > candidate.continued_at
        return replace(
            plain,
            token_ids=tokens + (tokens[-1:] or FILLER) * padding,
            sources=candidate.sources[:n] + (_NONE,) * padding,
            probs=tuple(candidate.probs[:n]) + (0.0,) * padding,
            layer=candidate.layer if n else "",
            padding=padding,
            continued_by=candidate.continued_by if continued else "",
            continued_at=candidate.continued_at if continued else 0,
        )


def _discounted(p: float) -> float:
    """Return the probability with its odds divided by _ODDS_DIVISOR."""
    return p / (_ODDS_DIVISOR - (_ODDS_DIVISOR - 1.0) * p)


def describe_continuation(after: tuple[int, ...], suggested: int = 0) -> str:
    """Return where an answer continues the draft and how many tokens were suggested to it, as text."""
    where = [f"after {len(after)} tokens"] if after else []
    return ", ".join([*where, f"with {suggested} suggested"] if suggested else where)
