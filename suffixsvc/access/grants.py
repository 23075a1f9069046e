"""Grants: the rights of principals on namespaces, by path prefix.

A grant on a path holds for it and for every namespace below it. A principal has every right on its own
prefix, the namespaces whose first component is its name; what else it has is the union of its own grants
and of those of every principal. There are no exceptions below a prefix: no grant takes back another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pygtrie

from suffixsvc.access.principals import EVERY, OPERATOR, Right, validate_principal
from suffixsvc.config import validate_namespace


@dataclass(frozen=True, slots=True)
class Grant:
    """A right that one line of a policy gives.

    Attributes:
        principal: whom it is given to; "*": every principal.
        right: with what it includes.
        path: prefix of the namespaces; "*": all of them.
    """

    principal: str
    right: Right
    path: str

    @property
    def source(self) -> str:
        """The place in a policy file, or the rule that gives it."""
        if self.path == self.principal:
            return "a principal's own prefix"
        return f'[principals."{self.principal}"] {self.right.value} = ["{self.path}"]'


class Grants:
    """The grants of a policy. Immutable, thread-safe.

    Args:
        grants: of all principals; "*" stands for every principal, and as a path for every namespace.
        public: rights of every principal on namespaces besides the grants: on those that sessions read by
            default.

    Raises:
        InvalidConfigError: the name of a principal is invalid.
        InvalidNamespaceError: a path is.
    """

    def __init__(self, grants: Iterable[Grant] = (), public: Mapping[str, Right] | None = None) -> None:
        self._grants = tuple(grants)
        self._tries: dict[str, pygtrie.Trie] = {}
        for grant in self._grants:
            if grant.principal != EVERY:
                validate_principal(grant.principal)
            self._add(grant)
        for path, right in (public or {}).items():
            self._add(Grant(EVERY, right, path))

    def __len__(self) -> int:
        return len(self._grants)

    def with_public(self, public: Mapping[str, Right]) -> Grants:
        """The same grants, and rights of every principal on namespaces."""
        return Grants(self._grants, public)

    def rights(self, principal: str, path: str) -> frozenset[Right]:
        """The rights of a principal on a namespace."""
        if principal == OPERATOR:
            return frozenset(Right)
        return frozenset().union(*(grant.right.includes for grant in self.of(principal, path)))

    def of(self, principal: str, path: str) -> Iterator[Grant]:
        """The grants that hold for a principal, which is not the operator, on a namespace."""
        parts = path.split("/")
        if parts[0] == principal:
            yield Grant(principal, Right.ADMIN, principal)
        for name in (principal, EVERY):
            if (trie := self._tries.get(name)) is not None:
                for step in trie.prefixes(parts):  # from the root down
                    yield from step.value

    def everywhere(self, principal: str, right: Right) -> bool:
        """Whether a principal has a right on every namespace."""
        if principal == OPERATOR:
            return True
        tries = (self._tries.get(name) for name in (principal, EVERY))
        granted = (grant for trie in tries if trie is not None for grant in trie.get((), ()))
        return any(right in grant.right.includes for grant in granted)

    def _add(self, grant: Grant) -> None:
        parts = () if grant.path == EVERY else tuple(validate_namespace(grant.path).split("/"))
        trie = self._tries.setdefault(grant.principal, pygtrie.Trie())
        trie[parts] = (*trie.get(parts, ()), grant)


def grants_of(principal: str, paths: Mapping[Right, Iterable[str]]) -> Iterator[Grant]:
    """The grants of one principal, given the paths of each right."""
    for right, granted in paths.items():
        for path in granted:
            yield Grant(principal, right, path)
