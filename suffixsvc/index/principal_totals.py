"""Running totals of principals over all namespaces of a cache: their outputs, and their live sessions.

The indexes update them, so that an admission reads what a principal holds without a visit of any namespace.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Protocol

from suffixsvc.index.output_size import OutputSize


class LiveMemory(Protocol):
    """The text of a session that is not closed, as far as its memory counts."""

    def held_bytes(self) -> int:
        """Memory of the text in bytes."""

    @property
    def principal(self) -> str:
        """Who writes it."""


@dataclass(slots=True)
class Written:
    """Outputs of a principal: all of them, and those that are never evicted."""

    all: OutputSize = field(default_factory=OutputSize)
    pinned: OutputSize = field(default_factory=OutputSize)

    def count(self, sign: int, size: OutputSize, *, pinned: bool) -> None:
        """Add outputs (1), or take them away (-1)."""
        self.all = self.all.plus(size, sign)
        if pinned:
            self.pinned = self.pinned.plus(size, sign)

    def add(self, other: Written, sign: int) -> None:
        """Add (1) or take away (-1) what another one counts."""
        self.all = self.all.plus(other.all, sign)
        self.pinned = self.pinned.plus(other.pinned, sign)


@dataclass(slots=True)
class _Holding:
    """What one principal holds."""

    written: Written = field(default_factory=Written)
    #: paths of the namespaces with outputs of it; an ordered set
    paths: dict[str, None] = field(default_factory=dict)
    live: set[LiveMemory] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        return not (self.paths or self.live)


class PrincipalTotals:
    """What each principal holds in a cache. Thread-safe; its lock is held for no other call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, _Holding] = {}
        #: paths of the namespaces of which outputs of earlier processes are not counted yet
        self._uncounted: set[str] = set()

    # -------------------------------------------------------------------------------------------- updates

    def add(self, principal: str, path: str, written: Written, sign: int, *, holds: bool) -> None:
        """Add outputs in a namespace (1), or take them away (-1).

        Args:
            holds: the namespace has outputs of the principal afterwards.
        """
        with self._lock:
            holding = self._of.setdefault(principal, _Holding())
            holding.written.add(written, sign)
            if holds:
                holding.paths[path] = None
            else:
                holding.paths.pop(path, None)
            self._drop_empty(principal, holding)

    def add_live(self, text: LiveMemory) -> None:
        """Count the text of a session."""
        with self._lock:
            self._of.setdefault(text.principal, _Holding()).live.add(text)

    def remove_live(self, text: LiveMemory) -> None:
        """Stop counting the text of a session. Idempotent."""
        with self._lock:
            holding = self._of.get(text.principal)
            if holding is not None:
                holding.live.discard(text)
                self._drop_empty(text.principal, holding)

    def _drop_empty(self, principal: str, holding: _Holding) -> None:
        if holding.is_empty:
            del self._of[principal]

    def set_counted(self, path: str, counted: bool) -> None:
        """Whether the outputs that earlier processes left in a namespace are counted."""
        with self._lock:
            if counted:
                self._uncounted.discard(path)
            else:
                self._uncounted.add(path)

    # -------------------------------------------------------------------------------------------- queries

    def uncounted(self) -> list[str]:
        """Paths of the namespaces of which outputs of earlier processes are not counted yet."""
        with self._lock:
            return list(self._uncounted)

    def principals(self) -> list[str]:
        """The principals that hold anything."""
        with self._lock:
            return list(self._of)

    def written_by(self, principal: str) -> Written:
        """The outputs of a principal. Those of pinned namespaces are never evicted."""
        with self._lock:
            holding = self._of.get(principal)
            return Written() if holding is None else replace(holding.written)

    def paths_of(self, principal: str) -> list[str]:
        """Paths of the namespaces with outputs of a principal."""
        with self._lock:
            holding = self._of.get(principal)
            return [] if holding is None else list(holding.paths)

    def sessions_of(self, principal: str) -> tuple[int, int]:
        """Number of a principal's live sessions, and their memory in bytes."""
        with self._lock:
            holding = self._of.get(principal)
            live = [] if holding is None else list(holding.live)
        return len(live), sum(text.held_bytes() for text in live)

    def live_bytes(self) -> int:
        """Memory of all live sessions in bytes."""
        with self._lock:
            live = [text for holding in self._of.values() for text in holding.live]
        return sum(text.held_bytes() for text in live)
