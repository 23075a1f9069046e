"""Drafted trees: functions on the parents of their tokens. The root is the newest emitted token.

    parents  -1 -1  0  0  3       root          leaves, the first child's first: 2, 4, 1
                                 /    \\         branches (runs of leaves below a node):
                                0      1        0: 0 .. 2   1: 2 .. 3   2: 0 .. 1   3, 4: 1 .. 2
                               / \\
                              2   3
                                  |
                                  4

``parents[i]`` is the index of token i's parent, smaller than i, or -1 for the root; empty ``parents`` stand
for a chain. Siblings are different tokens, so a text determines a path.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from suffixsvc.errors import InvalidInputError


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each token follows the one before it."""
    return all(parent == i - 1 for i, parent in enumerate(parents))


def check_parents(parents: Sequence[int], count: int) -> None:
    """Check the parents of a tree of ``count`` tokens; empty parents are valid.

    Raises:
        InvalidInputError: the number of parents is not ``count``, or a parent does not precede its child.
    """
    if parents and len(parents) != count:
        raise InvalidInputError(
            "the number of parents must be that of the tokens", expected=count, got=len(parents)
        )
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise InvalidInputError(
                f"the parent of token {i} must come before it", expected=f"-1 .. {i - 1}", got=parent
            )


def follow(token_ids: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """Return the indices of the drafted tokens that ``text`` begins with, along one path from the root."""
    if not parents:
        both = range(min(len(token_ids), len(text)))
        if token_ids[: len(both)] == text[: len(both)]:  # usual: the text is what was accepted
            return list(both)
        return list(itertools.takewhile(lambda i: token_ids[i] == text[i], both))
    path: list[int] = []
    child: dict[tuple[int, int], int] = {}
    for i, step in enumerate(zip(parents, token_ids, strict=True)):
        child.setdefault(step, i)
    at = -1
    for token in text:
        at = child.get((at, token), -1)
        if at < 0:
            break
        path.append(at)
    return path


def rows_of(token_ids: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """Return the row of logits from which each token of ``text`` was sampled.

    Row 0 follows the root, row i + 1 follows drafted token i. Rows end where the text leaves the tree.
    """
    return [0, *(i + 1 for i in follow(token_ids, parents, text))][: len(text)]


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return the number of drafted tokens before each token on its path."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def leaf_count(parents: Sequence[int]) -> int:
    """Return the number of tokens without children."""
    return len(parents) - len({parent for parent in parents if parent >= 0})


def most_probable_path(parents: Sequence[int], ranks: Sequence[float]) -> list[int]:
    """Return the path of the children of the largest rank from the root, the first one on ties."""
    best_child: dict[int, int] = {}
    for i, parent in enumerate(parents):
        rival = best_child.get(parent)
        if rival is None or ranks[i] > ranks[rival]:
            best_child[parent] = i
    path: list[int] = []
    at = best_child.get(-1)
    while at is not None:
        path.append(at)
        at = best_child.get(at)
    return path


def walk(parents: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return ``nodes``, a set closed under parents, in depth-first preorder; siblings keep their order."""
    children: dict[int, list[int]] = {}
    for node in nodes:
        children.setdefault(parents[node], []).append(node)
    found: list[int] = []
    ahead = children.get(-1, [])[::-1]
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead.extend(children.get(node, ())[::-1])
    return found


def branches_of(parents: Sequence[int]) -> list[tuple[int, int]]:
    """Return the half-open range (first, end) of the leaves below each token, itself if it is a leaf.

    Leaves are numbered in preorder.
    """
    leaves = [0] * len(parents)
    for i in range(len(parents) - 1, -1, -1):
        leaves[i] = max(1, leaves[i])
        if parents[i] >= 0:
            leaves[parents[i]] += leaves[i]
    runs: list[tuple[int, int]] = []
    taken = [0] * (len(parents) + 1)  # leaves assigned below each token, the root last
    for i, parent in enumerate(parents):
        first = taken[parent] + (runs[parent][0] if parent >= 0 else 0)
        taken[parent] += leaves[i]
        runs.append((first, first + leaves[i]))
    return runs
