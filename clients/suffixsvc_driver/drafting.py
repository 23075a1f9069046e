"""The draft of one step while it is put together: what the layers offered, and the best of it so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.chain import common_prefix
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import Considered, Propose, Verify
from suffixsvc_driver.policy import LEAST_GAIN, Choice, Headroom, best_prefix

__all__ = ["Offer", "StepDraft", "behind"]

_NONE: Final = int(DraftSource.NONE)
#: what fills a batch where nothing was drafted: a token that every vocabulary has
_ANY: Final = (0,)
#: Of all prefixes of all chains the one that looks best is sent, and what looks best is overrated more often
#: than not (the optimizer's curse). So a token counts with its odds divided by this: on real calls that is
#: 2 % faster at the costs of two cores, 1 % where a token costs a tenth, and loses nothing on a GPU.
_CAUTION: Final = 2.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A chain as the driver sees it.

    Attributes:
        layer: whose it is.
        token_ids, sources, probs: of each token; ``probs`` as the driver counts on them.
        continued_by, continued_at: another layer's tokens follow from there on.
        parents: of a tree, of each token.
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

    def tail(self, at: int) -> Offer:
        """This chain without its first ``at`` tokens."""
        return replace(self, token_ids=self.token_ids[at:], sources=self.sources[at:], probs=self.probs[at:])

    def then(self, other: Offer, at: int) -> Offer:
        """The first ``at`` tokens of this chain, and ``other`` behind them."""
        return Offer(
            self.layer,
            self.token_ids[:at] + other.token_ids,
            self.sources[:at] + other.sources,
            self.probs[:at] + other.probs,
            other.layer,
            at,
        )


_NOTHING: Final = Offer("", (), (), ())


class StepDraft:
    """The chain of one step: the best one that any layer offered.

    Args:
        curve: what the target's steps cost now.
        rate: tokens per unit cost so far.
        headroom: what a draft has to fit into.
    """

    __slots__ = ("_forced", "_looked_at", "_offers", "choice", "curve", "headroom", "offer", "rate")

    def __init__(self, curve: CostCurve, rate: float, headroom: Headroom) -> None:
        self.curve, self.rate, self.headroom = curve, rate, headroom
        self.choice = Choice()
        self.offer = _NOTHING
        self._forced = False
        self._offers: list[Offer] = []
        self._looked_at: list[Considered] = []

    @property
    def gain(self) -> float:
        """Of the best draft so far, tokens."""
        return self.choice.gain

    @property
    def gain_behind(self) -> float:
        """Of the part of it that one may go on behind."""
        return self.choice.gain

    def leave_alone(self, layer: str, why: str) -> None:
        """A layer was not asked."""
        self._looked_at.append(Considered(layer, 0, why))

    def consider(self, offer: Offer, budget: int, after: tuple[int, ...] = (), *, suggested: int = 0) -> None:
        """Take the best prefix of a chain if it gains more than what is there.

        Args:
            after: the tokens of :attr:`offer` it goes on behind.
            suggested: so many of the tokens behind these were suggested to whoever offers this.
        """
        offer, how = replace(offer, probs=tuple(map(_counted_on, offer.probs))), behind(after, suggested)
        if after:
            offer = self.offer.then(offer, len(after))
        if suggested:
            offer = self._compared(offer)
        self._offers.append(offer)
        self._note(offer, budget, how, self._weigh(offer))

    def _weigh(self, offer: Offer) -> Choice:
        """The best prefix of a chain, taken if it gains more than what is there."""
        choice = best_prefix(offer.probs, self.curve, self.rate, self.headroom)
        if choice.gain > max(self.choice.gain, LEAST_GAIN):
            self.choice, self.offer = choice, offer
        return choice

    def _compared(self, offer: Offer) -> Offer:
        """Somebody drafted with :attr:`offer` at hand: what they have in common counts as the surer one says,
        and stays its first owner's; where they part only one can be right. The others' offers likewise.

        Where they part, it is the draft model that is right: in 224 of 287 places on real calls (a 0.5B for a
        1.5B of its family), memory in 6, also where memory was the surer one. So memory's token gets what the
        model leaves, and not the other way round."""
        probs = list(offer.probs)
        owner, at = offer, 0
        for i, mine in enumerate(self._offers):
            agreed = common_prefix(offer.token_ids, mine.token_ids)
            both = tuple(map(max, offer.probs[:agreed], mine.probs[:agreed]))
            probs[:agreed] = map(max, probs[:agreed], both)
            rest = mine.probs[agreed:]
            if rest and len(offer) > agreed:
                rest = (min(rest[0], 1.0 - offer.probs[agreed]), *rest[1:])
            self._offers[i] = replace(mine, probs=both + rest)
            if agreed > at:
                owner, at = self._offers[i], agreed
        self.choice, self.offer = Choice(), _NOTHING
        for each in self._offers:
            self._weigh(each)
        offer = replace(offer, probs=tuple(probs))
        return owner.then(offer.tail(at), at) if at else offer

    def take(self, offer: Offer, length: int, budget: int) -> None:
        """Take so many tokens of a chain, whatever they gain."""
        choice = Choice(length, length + 1)
        self._note(offer, budget, "", choice)
        self.choice, self.offer, self._forced = choice, offer, True

    def propose(self) -> Propose:
        """The draft, however much of it pays, for a batch that is shared: what the others send may make more
        of it pay, or less."""
        if not self.choice.length and self._offers:
            self.offer = max(self._offers, key=lambda offer: sum(self._gains(offer)))
        if self._forced:
            return Propose((1.0,) * self.choice.length, forced=True)
        return Propose(self._gains(self.offer))

    def _gains(self, offer: Offer) -> tuple[float, ...]:
        """Of each token, as :func:`best_prefix` counts."""
        gains, path, headroom = [], 1.0, self.headroom
        for length, p in enumerate(offer.probs[: max(0, min(headroom.limit, headroom.room - 1))], start=1):
            again = 0.0
            if headroom.replays:
                again = path * (1.0 - p) * (self.curve.cost(1 + headroom.beside + length) - 1.0)
            path *= p
            gains.append(path - self.rate * again)
        return tuple(gains)

    def _note(self, offer: Offer, budget: int, how: str, choice: Choice) -> None:
        name = offer.continued_by or offer.layer
        self._looked_at.append(
            Considered(
                name,
                budget,
                "",
                offer.token_ids,
                offer.probs,
                choice.length,
                choice.width,
                choice.gain,
                how=how,
            )
        )

    def decide(self) -> Verify:
        """What to send."""
        return self.cut(self.choice.length, self.choice.width - 1 - self.choice.length)

    def cut(self, length: int, padding: int) -> Verify:
        """Send so many tokens of the draft, and so many behind them that only fill the batch."""
        plain = Verify(considered=tuple(self._looked_at), rate=self.rate)
        if not length + padding:
            return plain
        offer, n = self.offer, length
        tokens = offer.token_ids[:n]
        continued = bool(offer.continued_by) and n > offer.continued_at
        return replace(
            plain,
            token_ids=tokens + (tokens[-1:] or _ANY) * padding,
            sources=offer.sources[:n] + (_NONE,) * padding,
            probs=tuple(offer.probs[:n]) + (0.0,) * padding,
            layer=offer.layer if n else "",
            padding=padding,
            continued_by=offer.continued_by if continued else "",
            continued_at=offer.continued_at if continued else 0,
        )


def _counted_on(p: float) -> float:
    return p / (_CAUTION - (_CAUTION - 1.0) * p)


def behind(after: tuple[int, ...], suggested: int = 0) -> str:
    """Where an answer goes on, and what was suggested to it, in words."""
    where = [f"behind {len(after)} tokens"] if after else []
    return ", ".join([*where, f"with {suggested} suggested"] if suggested else where)
