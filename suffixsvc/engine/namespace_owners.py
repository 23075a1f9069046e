"""Which principals created the namespaces of a cache, so that none of them takes all that there may be.

A namespace counts for the principal that created it. The log does not hold who did: one of an earlier process
counts for every principal with outputs in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from suffixsvc.errors import LimitExceededError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.principal_totals import PrincipalTotals
from suffixsvc.types import NamespaceCreator


class NamespaceOwners:
    """The creators of the namespaces of one cache. The catalog's lock is held around every call.

    Args:
        totals: of the outputs of principals.
    """

    def __init__(self, totals: PrincipalTotals) -> None:
        self._totals = totals
        self._creators: weakref.WeakKeyDictionary[NamespaceIndex, str] = weakref.WeakKeyDictionary()
        self._created: dict[str, weakref.WeakSet[NamespaceIndex]] = {}

    def add(self, index: NamespaceIndex, principal: str) -> None:
        """Record who created a namespace; "": the operator."""
        self._creators[index] = principal
        if principal:
            self._created.setdefault(principal, weakref.WeakSet()).add(index)

    def remove(self, index: NamespaceIndex) -> None:
        """A namespace was deleted."""
        principal = self._creators.pop(index, "")
        if principal:
            self._created[principal].discard(index)

    def require_share(
        self, creator: NamespaceCreator, left: int, get: Callable[[str], NamespaceIndex | None]
    ) -> None:
        """Raise LimitExceededError if a principal may not create one more.

        Args:
            left: number of namespaces that can still be created.
            get: the index of the namespace at a path.
        """
        if not creator.principal:
            return
        own = self._count(creator.principal, get)
        most = creator.max_namespaces
        if most is not None and own >= most:
            raise _share_error(creator.principal, f"{most} (max_namespaces of its policy)", own)
        if 0 < own >= left and creator.is_one_of_several():
            raise _share_error(creator.principal, f"{left}, as many as it leaves to others", own)

    def _count(self, principal: str, get: Callable[[str], NamespaceIndex | None]) -> int:
        found = map(get, self._totals.paths_of(principal))
        earlier = sum(index is not None and index not in self._creators for index in found)
        return len(self._created.get(principal, ())) + earlier


def _share_error(principal: str, most: str, own: int) -> LimitExceededError:
    return LimitExceededError(
        f"namespaces of the principal {principal!r} must be at most its share",
        expected=f"at most {most}",
        got=own + 1,
        remedy="Write related outputs into one namespace, or delete namespaces.",
    )
