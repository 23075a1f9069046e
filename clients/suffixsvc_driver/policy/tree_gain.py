"""Expected-gain rule for trees: the subtree of a drafted tree to verify. Pure arithmetic.

See :mod:`suffixsvc_driver.policy.chain_gain` for the rule. A step that sends a set of drafted tokens closed
under parents emits 1 + sum P(path) tokens on average, whatever the shape of the set. The best set of n tokens
is therefore that of the n most probable paths, which contains their parents, and n is found as for a chain.
The shape matters only if the set has more leaves than the target accepts: then the leaves of the largest
total expected gain are selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.tree import leaf_count
from suffixsvc_driver.policy.chain_gain import Headroom

__all__ = ["TreeChoice", "best_tree", "path_probs", "prune"]


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """A subtree to send.

    Attributes:
        nodes: indices, the most probable first, parents before their children.
        width: tokens of the batch, the newest emitted token and padding included.
        gain: expected gain over a plain step, tokens.
        order: all nodes that could be sent, in the same order. ``nodes`` is a prefix of it, and no prefix has
            too many leaves.
        node_gains: expected tokens that each node of ``order`` adds.
    """

    nodes: tuple[int, ...] = ()
    width: int = 1
    gain: float = 0.0
    order: tuple[int, ...] = ()
    node_gains: tuple[float, ...] = ()


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
    parents: Sequence[int],
    paths: Sequence[float],
    curve: CostCurve,
    rate: float,
    headroom: Headroom,
    max_leaves: int,
) -> TreeChoice:
    """Return the subtree with the largest expected gain.

    The result is exact if the best subtree has at most ``max_leaves`` leaves or the curve is a straight line;
    otherwise the leaves are selected at the mean slope of the curve.

    Args:
        parents: of each token.
        paths: P(path) of each token, or a lower bound that decreases along every path.
        rate: lambda, tokens per unit of cost.
        headroom: ``replays`` is ignored: targets that replay are sent chains.
        max_leaves: leaves that the target accepts.
    """
    order = sorted(range(len(paths)), key=lambda i: (-paths[i], i))
    length, width, gain = _best_prefix(order, paths, curve, rate, headroom)
    if leaf_count(parents) > max_leaves:
        allowed = _prefix_within(parents, order, max_leaves)
        if length <= allowed:
            order = order[:allowed]
        else:
            plain = curve.cost(1 + headroom.other_tokens)
            token_cost = rate * max(0.0, curve.costs[width + headroom.other_tokens] - plain) / length
            order = prune(parents, paths, order, max_leaves, token_cost)
            length, width, gain = _best_prefix(order, paths, curve, rate, headroom)
    node_gains = tuple(paths[i] for i in order)
    return TreeChoice(tuple(order[:length]), width, gain, tuple(order), node_gains)


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


def _best_prefix(
    order: Sequence[int], paths: Sequence[float], curve: CostCurve, rate: float, headroom: Headroom
) -> tuple[int, int, float]:
    """Return length, width and gain of the best prefix of ``order``."""
    best = (0, 1, 0.0)
    other_tokens = headroom.other_tokens
    widest = min(curve.max_width, headroom.room + other_tokens)
    plain = curve.cost(1 + other_tokens)
    expected = 0.0
    for length in range(1, min(len(order), headroom.limit, widest - other_tokens - 1) + 1):
        expected += paths[order[length - 1]]
        width = curve.padded_width(1 + other_tokens + length, widest)
        gain = expected - rate * (curve.costs[width] - plain)
        if gain > best[2]:
            best = (length, width - other_tokens, gain)
    return best
