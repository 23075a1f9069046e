"""Graph check of a grammar's rules: left recursion, and the number of paths to their first characters.

An edge leads from a rule to every rule that may come first in it, all elements before it being
nullable. A cycle is a left recursion: llama.cpp refuses some and does not terminate for others. Without
cycles, the number of paths to a first character is the number of stacks that llama.cpp maintains where
the rule may begin.
"""

from __future__ import annotations

import graphlib
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.errors import GrammarError

#: longest chain of rules that come first in one another: llama.cpp follows them recursively
MAX_CHAIN: Final = 2000
#: paths from one rule to a first character: llama.cpp compares each pair
MAX_WAYS: Final = 10_000
#: paths from all rules together
MAX_ALL_WAYS: Final = 1_000_000

#: indices of rules, None for characters
Sequence = list[int | None]


@dataclass(slots=True)
class Rule:
    """Named rule, or a rule generated for brackets or a repetition.

    Attributes:
        name: of the rule, or of the named rule that contains it.
        alternatives: sequences that the rule matches.
        times: of a repetition, the number of rules that llama.cpp generates for it. Its first alternative
            ends in the rule itself.
    """

    name: str
    alternatives: list[Sequence] = field(default_factory=list)
    times: int = 0


def check_rules(rules: list[Rule]) -> None:
    """Check that llama.cpp can evaluate the rules.

    Raises:
        GrammarError: a left recursion, or too many paths to first characters.
    """
    empty = _nullable(rules)
    first = [_first(index, rule, empty) for index, rule in enumerate(rules)]
    try:
        order = list(graphlib.TopologicalSorter(dict(enumerate(first))).static_order())
    except graphlib.CycleError as err:
        names = list(dict.fromkeys(rules[index].name for index in reversed(err.args[1])))
        raise GrammarError(
            "the grammar must not be left-recursive",
            got=" -> ".join([*names, names[0]]),
            remedy="Write a repetition (* or +), or put the recursion last.",
        ) from None
    ways = [0] * len(rules)
    chain = [0] * len(rules)
    for index in order:
        rule = rules[index]
        # a nullable repetition: llama.cpp goes from each of its generated rules to the next
        again = rule.times if rule.times and _all_empty(rule.alternatives[0], empty) else 1
        ways[index] = again * (len(rule.alternatives) + sum(ways[other] for other in first[index]))
        chain[index] = again + max((chain[other] for other in first[index]), default=0)
        if ways[index] > MAX_WAYS:
            raise _too_many(rule, "ways to begin", MAX_WAYS)
        if chain[index] > MAX_CHAIN:
            raise _too_many(rule, "rules that begin with one another", MAX_CHAIN)
    # llama.cpp starts at every rule that it has not visited yet
    seen = [False] * len(rules)
    total = 0
    for index, rule in enumerate(rules):
        if not seen[index]:
            total += ways[index]
            if total > MAX_ALL_WAYS:
                raise _too_many(rule, "ways to begin, all rules together", MAX_ALL_WAYS)
            _mark(index, first, seen)


def _too_many(rule: Rule, what: str, limit: int) -> GrammarError:
    return GrammarError(
        f"the grammar must have at most {limit} {what}",
        got=f"more in rule '{rule.name}'",
        remedy="Use fewer alternatives, or classes of characters.",
    )


def _nullable(rules: list[Rule]) -> list[bool]:
    """Return which rules match the empty text, by a worklist: a sequence does when all its rules do."""
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
    """Return the rules that may come first in a rule, with multiplicity.

    A nullable repetition that comes first in itself is excluded: llama.cpp stops at a state that it has seen.
    """
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
