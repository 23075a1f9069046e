"""Can llama.cpp follow the rules of a grammar to their first characters, and in how many ways?

An edge leads from a rule to every rule that may stand first in it, what is before it being able to be
empty. A cycle of edges is a left recursion: llama.cpp refuses some and never comes back from others. Without
cycles, the number of ways to a first character is what it has to look at wherever that rule may begin.
"""

from __future__ import annotations

import graphlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.errors import GrammarError

__all__ = ["Rule", "Sequence", "check_rules"]

#: rules that stand first in one another: llama.cpp follows them recursively
MAX_CHAIN: Final = 2000
#: ways from one rule to a first character: llama.cpp compares each with each
MAX_WAYS: Final = 10_000
#: ... and from all rules together
MAX_ALL_WAYS: Final = 1_000_000

#: rules by number, None for characters
Sequence = list[int | None]


@dataclass(slots=True)
class Rule:
    """A rule with a name, or one made for brackets or a repetition.

    Attributes:
        name: its own, or that of the rule it is in.
        alternatives: what it may be.
        times: of a repetition: how many rules llama.cpp makes of it. Its first alternative ends in itself.
    """

    name: str
    alternatives: list[Sequence] = field(default_factory=list)
    times: int = 0


def check_rules(rules: list[Rule]) -> None:
    """Find what llama.cpp could not follow; nothing is returned.

    Raises:
        GrammarError: a left recursion, or too many ways.
    """
    empty = _may_be_empty(rules)
    first = [_first(index, rule, empty) for index, rule in enumerate(rules)]
    try:
        order = list(graphlib.TopologicalSorter(dict(enumerate(first))).static_order())
    except graphlib.CycleError as err:
        names = list(dict.fromkeys(rules[index].name for index in reversed(err.args[1])))
        raise GrammarError(
            "the grammar is left-recursive",
            expected="rules that begin with something else than themselves",
            got=" -> ".join([*names, names[0]]),
            remedy="Write a repetition (* or +), or put the recursion last.",
        ) from None
    ways = [0] * len(rules)
    chain = [0] * len(rules)
    for index in order:
        rule = rules[index]
        # a repetition of what may be empty: llama.cpp goes from each of its rules to the next
        again = rule.times if rule.times and _all_empty(rule.alternatives[0], empty) else 1
        ways[index] = again * (len(rule.alternatives) + sum(ways[other] for other in first[index]))
        chain[index] = again + max((chain[other] for other in first[index]), default=0)
        if ways[index] > MAX_WAYS:
            raise _too_much(rule, "ways to begin", MAX_WAYS)
        if chain[index] > MAX_CHAIN:
            raise _too_much(rule, "rules that begin with one another", MAX_CHAIN)
    # llama.cpp starts at every rule that it has not come through yet
    seen = [False] * len(rules)
    total = 0
    for index, rule in enumerate(rules):
        if not seen[index]:
            total += ways[index]
            if total > MAX_ALL_WAYS:
                raise _too_much(rule, "ways to begin, all rules together", MAX_ALL_WAYS)
            _mark(index, first, seen)


def _too_much(rule: Rule, what: str, limit: int) -> GrammarError:
    return GrammarError(
        f"the grammar has too many {what}",
        expected=f"at most {limit}",
        got=f"more in rule '{rule.name}'",
        remedy="Use fewer alternatives, or classes of characters.",
    )


def _may_be_empty(rules: list[Rule]) -> list[bool]:
    """Which rules may be empty. A sequence may once every rule in it may: counted down."""
    empty = [False] * len(rules)
    waiting: dict[int, list[tuple[int, int]]] = {}
    missing: list[int] = []
    found: deque[int] = deque()
    for index, rule in enumerate(rules):
        for sequence in rule.alternatives:
            refs = [other for other in sequence if other is not None]
            if len(refs) < len(sequence):
                continue
            for other in refs:
                waiting.setdefault(other, []).append((index, len(missing)))
            missing.append(len(refs))
            if not sequence and not empty[index]:
                empty[index] = True
                found.append(index)
    while found:
        for index, sequence_number in waiting.get(found.popleft(), ()):
            missing[sequence_number] -= 1
            if not missing[sequence_number] and not empty[index]:
                empty[index] = True
                found.append(index)
    return empty


def _all_empty(sequence: Sequence, empty: list[bool]) -> bool:
    return all(other is not None and empty[other] for other in sequence)


def _first(index: int, rule: Rule, empty: list[bool]) -> list[int]:
    """Rules that may stand first in this one, as often as they may. That a repetition of what may be empty
    comes round to itself is no recursion: llama.cpp has seen that state before and stops there."""
    out = []
    for sequence in rule.alternatives:
        for other in sequence:
            if other is None or (rule.times and other == index):
                break
            out.append(other)
            if not empty[other]:
                break
    return out


def _mark(start: int, first: list[list[int]], seen: list[bool]) -> None:
    todo = [start]
    seen[start] = True
    while todo:
        for other in first[todo.pop()]:
            if not seen[other]:
                seen[other] = True
                todo.append(other)
