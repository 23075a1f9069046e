"""Drafted trees: token ids and parents, the newest real token being the root.

    parents  -1 -1  0  0  3       root          leaves, the first child's first: 2, 4, 1
                                 /    \\         branches (runs of leaves below a node):
                                0      1        0: 0 .. 2   1: 2 .. 3   2: 0 .. 1   3, 4: 1 .. 2
                               / \\
                              2   3
                                  |
                                  4

``parents[i]`` is the index of token i's parent, smaller than i, -1 for the root; no parents at all stand for
a chain. Siblings differ, so a text says which path of a tree it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.errors import InvalidInputError

__all__ = ["branches_of", "check_parents", "depths_of", "follow", "is_chain", "leaf_count", "rows_of"]


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each token follows the one before it."""
    return all(parent == i - 1 for i, parent in enumerate(parents))


def check_parents(parents: Sequence[int], count: int) -> None:
    """Of ``count`` tokens; none at all stand for a chain.

    Raises:
        InvalidInputError: another number of them, or a parent that does not come before its child.
    """
    if not parents:
        return
    if len(parents) != count:
        raise InvalidInputError("a parent for every token", expected=count, got=len(parents))
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise InvalidInputError(
                f"the parent of token {i} does not come before it", expected=f"-1 .. {i - 1}", got=parent
            )


def follow(token_ids: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """Indices of the drafted tokens that ``text`` begins with, one behind the other from the root."""
    path: list[int] = []
    if not parents:
        for i, token in enumerate(text[: len(token_ids)]):
            if token_ids[i] != token:
                break
            path.append(i)
        return path
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
    """Which row of logits each token of ``text`` was chosen from: 0 is behind the root, i + 1 behind drafted
    token i. Ends where the text leaves the tree."""
    return [0, *(i + 1 for i in follow(token_ids, parents, text))][: len(text)]


def depths_of(parents: Sequence[int]) -> list[int]:
    """How many drafted tokens stand in front of each."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def leaf_count(parents: Sequence[int]) -> int:
    """Tokens without children."""
    return len(parents) - len({parent for parent in parents if parent >= 0})


def branches_of(parents: Sequence[int]) -> list[tuple[int, int]]:
    """Of each token, the run (first, end) of leaves below it, itself where it is one. Leaves are numbered as
    a walk meets them that takes the first child first."""
    leaves = [0] * len(parents)
    for i in range(len(parents) - 1, -1, -1):
        leaves[i] = max(1, leaves[i])
        if parents[i] >= 0:
            leaves[parents[i]] += leaves[i]
    runs: list[tuple[int, int]] = []
    taken = [0] * (len(parents) + 1)  # leaves given away below each token, the root last
    for i, parent in enumerate(parents):
        first = taken[parent] + (runs[parent][0] if parent >= 0 else 0)
        taken[parent] += leaves[i]
        runs.append((first, first + leaves[i]))
    return runs
