"""Expected-gain rule for chains: the prefix of a draft to verify. Pure arithmetic.

A step that sends n drafted tokens emits 1 + sum P(path) tokens on average and costs c[1 + n]. With lambda
tokens emitted per unit of cost so far, the n that maximises sum P(path) - lambda * c[1 + n] maximises tokens
per second in the long run (renewal-reward theorem). All prefixes are compared: on a curve with steps, a rule
that decides token by token stops right before a cheap width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc_driver.cost.curve import CostCurve

__all__ = [
    "MIN_GAIN",
    "Choice",
    "Headroom",
    "PrefixEvaluation",
    "RunningRate",
    "best_prefix",
    "best_query",
    "evaluate_prefixes",
]

#: tokens; smaller gains count as none, since probabilities and costs are not known that precisely
MIN_GAIN: Final = 0.02
#: acceptance of a layer at positions where the suggested token is wrong, relative to its acceptance
#: elsewhere: such positions are harder to predict
_ACCEPTANCE_AFTER_WRONG_SUGGESTION: Final = 0.5
#: plain steps that a new RunningRate starts with; on two cores 1 % faster than starting with one step, and no
#: slower where verification is cheap
_PRIOR_STEPS: Final = 80.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A prefix of a draft to send.

    Attributes:
        length: drafted tokens; 0 is a plain step.
        width: tokens of the batch, the newest emitted token included.
        gain: expected gain over a plain step, tokens.
    """

    length: int = 0
    width: int = 1
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Headroom:
    """Limits of a draft, and the other contents of its batch.

    Attributes:
        limit: upper bound of useful drafted tokens.
        room: widest possible batch, including the newest emitted token, excluding ``other_tokens``.
        other_tokens: tokens of the batch of other generations, or replayed after a partially accepted draft.
        replays: the target recomputes the accepted tokens of a partially accepted draft in the next step.
    """

    limit: int
    room: int
    other_tokens: int = 0
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
    """Return the prefix with the largest expected gain.

    Args:
        probs: P(accepted | all tokens before it accepted) of each token.
        rate: lambda, tokens per unit of cost.
        given: only prefixes longer than this are compared.
        costs: cost of drafting each prefix, in plain steps; empty if drafting is free.
    """
    best = Choice()
    other_tokens = headroom.other_tokens
    widest = min(curve.max_width, headroom.room + other_tokens)
    longest = min(len(probs), headroom.limit, widest - other_tokens - 1)
    plain = curve.cost(1 + other_tokens)
    path, expected, again = 1.0, 0.0, 0.0
    for length in range(1, longest + 1):
        p = probs[length - 1]
        if headroom.replays:
            # if this token is rejected, the next step recomputes the batch up to here
            again += path * (1.0 - p) * (curve.cost(1 + other_tokens + length) - 1.0)
        path *= p
        expected += path
        if length <= given:
            continue
        width = curve.padded_width(1 + other_tokens + length, widest)
        cost = curve.costs[width] - plain + again
        if costs:
            cost += costs[length - 1]
        gain = expected - rate * cost
        if gain > best.gain:
            best = Choice(length, width - other_tokens, gain)
    return best


@dataclass(frozen=True, slots=True)
class PrefixEvaluation:
    """Expected gain of one prefix and its terms.

    Attributes:
        length: drafted tokens.
        width: tokens of the batch, ``Headroom.other_tokens`` excluded.
        tokens: expected accepted tokens.
        cost: of the batch beyond that of a plain step, in plain steps.
        gain: ``tokens - rate * cost``; negative if the prefix is not worth sending.
    """

    length: int
    width: int
    tokens: float
    cost: float
    gain: float


def evaluate_prefixes(
    probs: Sequence[float], curve: CostCurve, rate: float, headroom: Headroom
) -> list[PrefixEvaluation]:
    """Return the evaluation of every prefix that :func:`best_prefix` compares, for reports."""
    found = []
    other_tokens = headroom.other_tokens
    widest = min(curve.max_width, headroom.room + other_tokens)
    path, tokens, again = 1.0, 0.0, 0.0
    for length, p in enumerate(probs[: max(0, min(headroom.limit, widest - other_tokens - 1))], start=1):
        if headroom.replays:
            again += path * (1.0 - p) * (curve.cost(1 + other_tokens + length) - 1.0)
        path *= p
        tokens += path
        width = curve.padded_width(1 + other_tokens + length, widest)
        cost = curve.costs[width] - curve.cost(1 + other_tokens) + again
        found.append(PrefixEvaluation(length, width - other_tokens, tokens, cost, tokens - rate * cost))
    return found


def best_query(
    acceptance: float,
    curve: CostCurve,
    rate: float,
    headroom: Headroom,
    *,
    after: Sequence[float] = (),
    suggested: Sequence[float] = (),
    cost_per_query: float = 0.0,
    cost_per_token: float = 0.0,
    cost_per_read: float = 0.0,
) -> Choice:
    """Return the best prefix of a draft still to be queried, its gain net of the query's cost.

    Every queried token is assumed to be accepted with probability ``acceptance``; 1 gives the upper bound of
    what the layer can gain.

    Args:
        after: probabilities of the draft that the layer continues; the returned length includes it.
        suggested: probabilities of tokens suggested to follow ``after``. The layer verifies them in one pass
            as far as it agrees; where it disagrees, the more probable of the two tokens is sent.
        cost_per_query: in plain steps, as are the next two.
        cost_per_token: of one pass of the draft model.
        cost_per_read: of reading one suggested token.
    """
    wanted = max(0, headroom.limit - len(after))
    costs = [0.0] * len(after)
    path, saved = 1.0, 0.0
    for i in range(wanted):
        # the pass that verifies i suggested tokens drafts one more
        costs.append(
            cost_per_query + cost_per_read * min(i, len(suggested)) + cost_per_token * (i + 1 - saved)
        )
        if i < len(suggested):
            path *= suggested[i]
            saved += path
    after_wrong = _ACCEPTANCE_AFTER_WRONG_SUGGESTION * acceptance
    either = [max(acceptance, p + (1.0 - p) * after_wrong) for p in suggested[:wanted]]
    probs = [*after, *either, *[acceptance] * (wanted - len(either))]
    return best_prefix(probs, curve, rate, headroom, given=len(after), costs=costs)


class RunningRate:
    """Lambda: tokens per unit of cost, an exponentially decayed mean over the steps.

    At least 1, the rate of plain decoding: after a series of rejected drafts, bad drafts must not appear to
    gain. The mean starts with the weight of many plain steps. Hits come in runs, so a few good steps say
    little about the long-run rate, and a lambda that followed them would reject drafts where they are most
    accurate.

    Args:
        decay: factor of the weight of earlier steps, per step.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._tokens = _PRIOR_STEPS
        self._cost = _PRIOR_STEPS

    @property
    def value(self) -> float:
        """Tokens per plain step's cost."""
        return max(1.0, self._tokens / self._cost) if self._cost > 0.0 else 1.0

    def add(self, tokens: int, cost: float) -> None:
        """Record a step that emitted ``tokens`` and cost ``cost`` plain steps."""
        self._tokens = self._tokens * self._decay + tokens
        self._cost = self._cost * self._decay + cost
