"""Which part of a tree to verify: pure arithmetic. See :mod:`suffixsvc_driver.policy` for what "pays" means.

A step that sends a set of drafted tokens, closed under parents, writes 1 + sum P(path) tokens, whatever their
shape. So the best set of n tokens are the n most probable ones, which hold their own parents, and the n is
found as that of a chain is. Only where these have more leaves than the target can take does the shape matter:
then the leaves that are worth most are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.policy import Headroom
from suffixsvc_driver.tree import leaf_count

__all__ = ["TreeChoice", "best_tree", "path_probs", "prune"]


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """A part of a tree.

    Attributes:
        nodes: indices, the most probable first, parents before their children.
        width: of the batch, the newest real token and padding included.
        gain: over drafting nothing, tokens.
        order: the nodes that could be sent, likewise: ``nodes`` is the beginning of it, and no beginning of
            it has too many leaves.
    """

    nodes: tuple[int, ...] = ()
    width: int = 1
    gain: float = 0.0
    order: tuple[int, ...] = ()


def path_probs(parents: Sequence[int], probs: Sequence[float]) -> list[float]:
    """P(path) of each token, from P(accepted | parent accepted). Siblings exclude each other: where theirs
    add up to more than 1, each gets its share of it."""
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
    """The part that gains most: exactly, where the leaves allowed are as many as it wants or the curve is a
    straight line; otherwise of the leaves that are worth most at its mean slope.

    Args:
        parents, paths: of each token; ``paths`` is P(path).
        rate: lambda, tokens per unit cost.
        headroom: ``replays`` is not looked at: who has to compute tokens again drafts chains.
    """
    order = sorted(range(len(paths)), key=lambda i: (-paths[i], i))
    length, width, gain = _best_prefix(order, paths, curve, rate, headroom)
    if leaf_count(parents) > max_leaves:
        within = _within(parents, order, max_leaves)
        if length <= within:
            order = order[:within]
        else:
            plain = curve.cost(1 + headroom.beside)
            price = rate * max(0.0, curve.costs[width + headroom.beside] - plain) / length
            order = prune(parents, paths, order, max_leaves, price)
            length, width, gain = _best_prefix(order, paths, curve, rate, headroom)
    return TreeChoice(tuple(order[:length]), width, gain, tuple(order))


def prune(
    parents: Sequence[int], paths: Sequence[float], order: Sequence[int], max_leaves: int, price: float
) -> list[int]:
    """The beginning of every path to the ``max_leaves`` leaves that are worth most together, in ``order``.

    A tree falls into as many chains as it has leaves, each going on with the child that has most below it;
    the heaviest of them are the best choice of leaves, where a token weighs what it gains over its price."""
    weights = [max(0.0, p - price) for p in paths]
    heaviest: dict[int, tuple[float, int]] = {}
    for i in range(len(parents) - 1, -1, -1):
        weights[i] += heaviest.get(i, (0.0, -1))[0]
        rival = heaviest.get(parents[i])
        if rival is None or weights[i] >= rival[0]:
            heaviest[parents[i]] = (weights[i], i)
    goes_on = {i for parent, (_, i) in heaviest.items() if parent >= 0}
    heads = sorted((i for i in range(len(parents)) if i not in goes_on), key=lambda i: (-weights[i], i))
    kept = set()
    for head in heads[:max_leaves]:
        at = head
        while at >= 0:
            kept.add(at)
            at = heaviest.get(at, (0.0, -1))[1]
    return [i for i in order if i in kept]


def _within(parents: Sequence[int], order: Sequence[int], max_leaves: int) -> int:
    """How many of the nodes have no more leaves than that together."""
    leaves = 0
    inner: set[int] = set()
    for length, i in enumerate(order):
        parent = parents[i]
        # the first child takes its parent's place among the leaves
        if parent < 0 or parent in inner:
            leaves += 1
        inner.add(parent)
        if leaves > max_leaves:
            return length
    return len(order)


def _best_prefix(
    order: Sequence[int], paths: Sequence[float], curve: CostCurve, rate: float, headroom: Headroom
) -> tuple[int, int, float]:
    """Length, width, gain."""
    best = (0, 1, 0.0)
    beside = headroom.beside
    widest = min(curve.max_width, headroom.room + beside)
    plain = curve.cost(1 + beside)
    expected = 0.0
    for length in range(1, min(len(order), headroom.limit, widest - beside - 1) + 1):
        expected += paths[order[length - 1]]
        width = curve.padded_width(1 + beside + length, widest)
        gain = expected - rate * (curve.costs[width] - plain)
        if gain > best[2]:
            best = (length, width - beside, gain)
    return best
