"""What a session drafts from: the namespaces that it reads, as far as its reader may see them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from suffixsvc import core
from suffixsvc.index.hot_index import SeesAll
from suffixsvc.index.namespace import NamespaceIndex
from suffixsvc.index.published import PrincipalLearner
from suffixsvc.index.texts import next_writer


class SessionSources:
    """Indexes that a session drafts from, and its learned tables. Thread-safe.

    Args:
        namespaces: the session's own one first; kept alive.
        principal: that the session belongs to.
        sees_all: whether the session's reader sees all of a namespace, or its published runs only.
    """

    def __init__(self, namespaces: Sequence[NamespaceIndex], principal: str, sees_all: SeesAll) -> None:
        self._namespaces, self._principal, self._sees_all = list(namespaces), principal, sees_all
        self._indexes: list[core.Index] = []
        self._lock = threading.Lock()
        self.learner = namespaces[0].learner_of(principal)
        #: holds the learned tables of a session that drafts from published runs
        self._tables: PrincipalLearner | None = None

    def apply_rights(self, native: core.Session) -> None:
        """Let a session draft from what its reader may see at this moment, from the next step on."""
        with self._lock:
            indexes = [each.source(self._sees_all) for each in self._namespaces]
            if indexes == self._indexes:
                return
            own = self._namespaces[0]
            if indexes[0] is own.index:
                self._tables, self.learner = None, own.learner_of(self._principal)
            else:
                self._tables = own.published.learner(self._principal)
                self.learner = self._tables.native
            native.read_from(indexes, self.learner)
            self._indexes = indexes

    def scratch_session(self) -> core.Session:
        """A session of its own without text, which drafts from the same."""
        with self._lock:
            return core.Session(None, self._indexes, self.learner, next_writer(), 0)
