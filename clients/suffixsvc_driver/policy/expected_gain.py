"""Expected-gain rule: the prefix of a chain, or the subtree of a tree, to verify. Pure arithmetic.

The native core has the rule and its reason (``csrc/driver/step_costs.h``). It takes P(path) of each token.
Their sum does not depend on the shape of a set of tokens that is closed under parents. The best n tokens of a
tree are therefore those of the n most probable paths, which contain their parents, and n is found as for a
chain. The shape matters only if the set has more leaves than the target accepts: then the leaves of the
largest total expected gain are selected.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from suffixsvc_driver.cost.curve import CostCurve

#: tokens; smaller gains count as none, since probabilities and costs are not known that precisely
MIN_GAIN: Final = 0.02
#: acceptance of a layer at positions where the suggested token is wrong, relative to its acceptance
#: elsewhere: such positions are harder to predict
_ACCEPTANCE_AFTER_WRONG_SUGGESTION: Final = 0.5
#: plain steps that a new RunningRate starts with; on two cores 1 % faster than starting with one step, and no
#: slower where verification is cheap
_PRIOR_STEPS: Final = 80.0


class Choice(NamedTuple):
    """A prefix of a draft to send, or a subtree.

    Attributes:
        length: drafted tokens; 0 is a plain step.
        width: tokens of the batch, the newest emitted token included, ``StepParams.other_tokens`` excluded.
        gain: expected gain over a plain step, tokens; negative if the prefix is not worth sending.
        tokens: expected accepted tokens.
        cost: beyond that of a plain step, in plain steps: ``gain = tokens - rate * cost``.
    """

    length: int = 0
    width: int = 1
    gain: float = 0.0
    tokens: float = 0.0
    cost: float = 0.0


#: a step without drafts
PLAIN: Final = Choice()


class StepParams(NamedTuple):
    """Costs and limits by which the draft of a step is chosen, and the other contents of its batch.

    Attributes:
        curve: cost of the target's steps.
        rate: lambda, tokens per unit of cost.
        limit: upper bound of useful drafted tokens.
        room: widest possible batch, including the newest emitted token, excluding ``other_tokens``.
        other_tokens: tokens of the batch of other generations, or replayed after a partially accepted draft.
        replays: the target recomputes the accepted tokens of a partially accepted draft in the next step.
    """

    curve: CostCurve
    rate: float
    limit: int
    room: int
    other_tokens: int = 0
    replays: bool = False


def recomputations(probs: Sequence[float], step: StepParams) -> Iterator[float]:
    """Yield the expected cost of the replay if each token of a chain is the first rejected one."""
    path, base = 1.0, 1 + step.other_tokens
    for length, p in enumerate(probs, start=1):
        yield path * (1.0 - p) * (step.curve.cost(base + length) - 1.0) if step.replays else 0.0
        path *= p


def evaluate_prefixes(
    probs: Sequence[float], step: StepParams, costs: Sequence[float] = ()
) -> Iterator[Choice]:
    """Yield the evaluation of every prefix of a chain that may be sent.

    Args:
        probs: P(accepted | all tokens before it accepted) of each token.
        costs: cost of drafting each prefix, in plain steps; empty: none.
    """
    for figures in step.curve.native.evaluate(_paths(probs), *_limits(step), _extra(probs, step, costs)):
        yield Choice(*figures)


def best_prefix(
    probs: Sequence[float], step: StepParams, costs: Sequence[float] = (), longer_than: int = 0
) -> Choice:
    """Return the prefix of a chain with the largest expected gain; a plain step if no gain is positive.

    Args:
        probs: P(accepted | all tokens before it accepted) of each token.
        costs: cost of drafting each prefix, in plain steps; empty: none.
        longer_than: shorter prefixes, and one of this length, do not count.
    """
    return _best(_paths(probs), step, _extra(probs, step, costs), longer_than)


def _best(
    paths: Sequence[float], step: StepParams, extra: Sequence[float] = (), longer_than: int = 0
) -> Choice:
    best = step.curve.native.best(paths, *_limits(step), extra, longer_than)
    return PLAIN if best is None else Choice(*best)


def _paths(probs: Sequence[float]) -> list[float]:
    """Return P(path) of each token of a chain."""
    return list(itertools.accumulate(probs, operator.mul))


def _limits(step: StepParams) -> tuple[float, int, int, int]:
    return step.rate, max(0, step.limit), max(0, step.room), step.other_tokens


def _extra(probs: Sequence[float], step: StepParams, costs: Sequence[float]) -> Sequence[float]:
    """Return the cost of each prefix beyond its width: that of drafting it, and of the replay after it."""
    if not step.replays:
        return costs
    again = itertools.accumulate(recomputations(probs, step))
    return [a + b for a, b in zip(again, costs or itertools.repeat(0.0), strict=False)]


def best_query(
    acceptance: float,
    step: StepParams,
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
    wanted = max(0, step.limit - len(after))
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
    return best_prefix(probs, step, costs, len(after))


def path_probs(parents: Sequence[int], probs: Sequence[float]) -> list[float]:
    """Return P(path) of each token from P(accepted | parent accepted).

    Siblings exclude each other: probabilities of siblings whose sum exceeds 1 are scaled to sum to 1.
    """
    below: dict[int, float] = {}
    for parent, prob in zip(parents, probs, strict=True):
        below[parent] = below.get(parent, 0.0) + prob
    paths: list[float] = []
    for parent, prob in zip(parents, probs, strict=True):
        above = paths[parent] if parent >= 0 else 1.0
        paths.append(above * prob / max(1.0, below[parent]))
    return paths


def best_tree(
    parents: Sequence[int], paths: Sequence[float], step: StepParams, max_leaves: int
) -> tuple[Choice, list[int]]:
    """Return the subtree with the largest expected gain, and the order in which nodes are sent.

    The subtree is the first nodes of the order: the most probable first, parents before their children. No
    prefix of the order has too many leaves. The result is exact if the best subtree does not have too many
    either or the curve is a straight line; otherwise the leaves are selected at the mean slope of the curve.

    Args:
        parents: of each token.
        paths: P(path) of each token, or a lower bound that decreases along every path.
        step: ``replays`` is ignored: targets that replay are sent chains.
        max_leaves: leaves that the target accepts.
    """
    order = sorted(range(len(paths)), key=lambda i: (-paths[i], i))
    choice = _best([paths[i] for i in order], step)
    allowed = _prefix_within(parents, order, max_leaves)
    if choice.length <= allowed:
        return choice, order[:allowed]
    curve, other_tokens = step.curve, step.other_tokens
    added = max(0.0, curve.costs[choice.width + other_tokens] - curve.cost(1 + other_tokens))
    order = prune(parents, paths, order, max_leaves, step.rate * added / choice.length)
    return _best([paths[i] for i in order], step), order


def prune(
    parents: Sequence[int], paths: Sequence[float], order: Sequence[int], max_leaves: int, token_cost: float
) -> list[int]:
    """Return the nodes on the paths to the ``max_leaves`` leaves of the largest total weight, in ``order``.

    A node weighs its probability less ``token_cost``. A long-path decomposition splits the tree into as many
    chains as it has leaves, each continuing with the heaviest child; the heaviest chains are the best leaves.
    """
    weights = [max(0.0, p - token_cost) for p in paths]
    heaviest: dict[int, tuple[float, int]] = {}
    for i in range(len(parents) - 1, -1, -1):
        weights[i] += heaviest.get(i, (0.0, -1))[0]
        rival = heaviest.get(parents[i])
        if rival is None or weights[i] >= rival[0]:
            heaviest[parents[i]] = (weights[i], i)
    inner = {i for parent, (_, i) in heaviest.items() if parent >= 0}
    heads = sorted((i for i in range(len(parents)) if i not in inner), key=lambda i: (-weights[i], i))
    kept = set()
    for head in heads[:max_leaves]:
        at = head
        while at >= 0:
            kept.add(at)
            at = heaviest.get(at, (0.0, -1))[1]
    return [i for i in order if i in kept]


def _prefix_within(parents: Sequence[int], order: Sequence[int], max_leaves: int) -> int:
    """Length of the longest prefix of ``order`` that has at most ``max_leaves`` leaves."""
    leaves = 0
    inner: set[int] = set()
    for length, i in enumerate(order):
        parent = parents[i]
        # the first child replaces its parent as a leaf
        if parent < 0 or parent in inner:
            leaves += 1
        inner.add(parent)
        if leaves > max_leaves:
            return length
    return len(order)


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
