"""Which prefix of a draft to verify: pure arithmetic.

Expected gain: a step that sends n drafted tokens writes 1 + sum P(path) tokens and costs c[1 + n]. With
lambda tokens gained per unit cost so far, the n that maximises sum P(path) - lambda * c[1 + n] maximises
tokens per second in the long run (renewal-reward). Whole prefixes are compared, never token by token: a
curve with steps would stall a greedy rule right before its cheap width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.curve import CostCurve

__all__ = [
    "LEAST_GAIN",
    "Choice",
    "Headroom",
    "RunningRate",
    "Weighed",
    "best_ask",
    "best_prefix",
    "weigh_prefixes",
]

#: tokens; what gains less than this gains nothing: probabilities and prices are not known that well
LEAST_GAIN: Final = 0.02
#: of what a layer gets right anywhere, the share that it gets right where the suggested token is wrong: such
#: places are harder than others
_RIGHT_WHERE_OTHERS_FAIL: Final = 0.5
#: so many a rate is taken to have behind it before there are any; measured on two cores: 1 % faster than with
#: one, and no slower where verification costs little
_PLAIN_STEPS: Final = 80.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A prefix of ``length`` tokens in a batch of ``width``, the newest real token included, and what it
    gains over drafting nothing, in tokens. Length 0 is a plain step."""

    length: int = 0
    width: int = 1
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a draft has to fit into, and what the batch holds besides.

    Attributes:
        limit: drafted tokens that may be of use at most.
        room: the widest batch that is possible, the newest real token included, ``beside`` left out.
        beside: tokens that are in the batch anyhow, the newest real one left out: computed again after
            a draft that was accepted in part, or of other generations.
        replays: what is accepted of a draft that fails somewhere has to be computed again in the next step.
    """

    limit: int
    room: int
    beside: int = 0
    replays: bool = False


def best_prefix(
    probs: Sequence[float],
    curve: CostCurve,
    rate: float,
    headroom: Headroom,
    *,
    given: int = 0,
    costs: Sequence[float] = (),
) -> Choice:
    """The prefix that gains most.

    Args:
        probs: P(accepted | all before accepted) of each token.
        rate: lambda, tokens per unit cost.
        given: tokens at the start that are there already: only longer prefixes are compared.
        costs: of each prefix, what it takes to get it, in plain steps; none where that is nothing.
    """
    best = Choice()
    beside = headroom.beside
    widest = min(curve.max_width, headroom.room + beside)
    longest = min(len(probs), headroom.limit, widest - beside - 1)
    plain = curve.cost(1 + beside)
    path, expected, again = 1.0, 0.0, 0.0
    for length in range(1, longest + 1):
        p = probs[length - 1]
        if headroom.replays:
            # failing right here, the next step computes all of this batch before it again
            again += path * (1.0 - p) * (curve.cost(1 + beside + length) - 1.0)
        path *= p
        expected += path
        if length <= given:
            continue
        width = curve.padded_width(1 + beside + length, widest)
        cost = curve.costs[width] - plain + again
        if costs:
            cost += costs[length - 1]
        gain = expected - rate * cost
        if gain > best.gain:
            best = Choice(length, width - beside, gain)
    return best


@dataclass(frozen=True, slots=True)
class Weighed:
    """A prefix, and why it pays or does not.

    Attributes:
        length, width: tokens of it, and the batch they need, ``Headroom.beside`` left out.
        tokens: that it is expected to bring.
        cost: of its batch beyond a plain step's, in plain steps.
        gain: what is left of the tokens when the cost is paid at the rate; below 0 it does not pay.
    """

    length: int
    width: int
    tokens: float
    cost: float
    gain: float


def weigh_prefixes(
    probs: Sequence[float], curve: CostCurve, rate: float, headroom: Headroom
) -> list[Weighed]:
    """What :func:`best_prefix` chooses from, for people who ask why: the same sums, every prefix."""
    found = []
    beside = headroom.beside
    widest = min(curve.max_width, headroom.room + beside)
    path, tokens, again = 1.0, 0.0, 0.0
    for length, p in enumerate(probs[: max(0, min(headroom.limit, widest - beside - 1))], start=1):
        if headroom.replays:
            again += path * (1.0 - p) * (curve.cost(1 + beside + length) - 1.0)
        path *= p
        tokens += path
        width = curve.padded_width(1 + beside + length, widest)
        cost = curve.costs[width] - curve.cost(1 + beside) + again
        found.append(Weighed(length, width - beside, tokens, cost, tokens - rate * cost))
    return found


def best_ask(
    acceptance: float,
    curve: CostCurve,
    rate: float,
    headroom: Headroom,
    *,
    after: Sequence[float] = (),
    suggested: Sequence[float] = (),
    cost_per_ask: float = 0.0,
    cost_per_token: float = 0.0,
    cost_per_read: float = 0.0,
) -> Choice:
    """The best prefix were each token a layer is asked for accepted with this probability, and its gain after
    paying for the question. At acceptance 1 this is the best the layer could ever do.

    Args:
        after: probabilities of a draft that the layer is to go on behind; the choice's length counts them.
        suggested: of tokens that may follow these: as many as it agrees with come in one pass, and of two
            that part the surer one is sent.
        cost_per_ask, cost_per_token, cost_per_read: in plain steps: of a question, of each pass, of each
            suggested token.
    """
    wanted = max(0, headroom.limit - len(after))
    costs = [0.0] * len(after)
    path, saved = 1.0, 0.0
    for i in range(wanted):
        # the pass that looks at i suggested tokens gives one more
        costs.append(cost_per_ask + cost_per_read * min(i, len(suggested)) + cost_per_token * (i + 1 - saved))
        if i < len(suggested):
            path *= suggested[i]
            saved += path
    elsewhere = _RIGHT_WHERE_OTHERS_FAIL * acceptance
    either = [max(acceptance, p + (1.0 - p) * elsewhere) for p in suggested[:wanted]]
    probs = [*after, *either, *[acceptance] * (wanted - len(either))]
    return best_prefix(probs, curve, rate, headroom, given=len(after), costs=costs)


class RunningRate:
    """lambda: tokens per unit cost so far, old steps decayed. Never below 1, which plain decoding gives:
    a run of bad luck must not make bad drafts look worth their price.

    It begins as if many plain steps lay behind it. Hits come in runs: a few good steps say little of what a
    unit of cost brings in the long run, and a lambda that follows them is choosy just where drafts are good.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._tokens = _PLAIN_STEPS
        self._cost = _PLAIN_STEPS

    @property
    def value(self) -> float:
        return max(1.0, self._tokens / self._cost) if self._cost > 0.0 else 1.0

    def add(self, tokens: int, cost: float) -> None:
        self._tokens = self._tokens * self._decay + tokens
        self._cost = self._cost * self._decay + cost
