"""The namespaces that a follower follows."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping

from suffixsvc.errors import SuffixError
from suffixsvc.log_types import NamespaceContents
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy
from suffixsvc_follower.session import FollowerSession


class Followed:
    """One namespace, its copy, and what uses it.

    Args:
        path: of the namespace.
        tokenizer: fingerprint that the service is asked to compare; "" = none.
        copy: its outputs, and the live text of other processes.

    Attributes:
        generation: of the contents in the copy; 0 = none yet.
        ready: set while the copy holds the contents.
        refused: why the service does not let it be followed; None while it does.
        sessions: that draft from it.
        last_used: of time.monotonic.
    """

    def __init__(self, path: str, tokenizer: str, copy: NamespaceCopy) -> None:
        self.path, self.tokenizer = path, tokenizer
        self.copy = copy
        #: digests of the headers of its segments, by name
        self.digests: Mapping[str, bytes] = {}
        self.generation = 0
        #: what its learner had learned when that was last reported; b"": the shipped tables
        self.learned_base = b""
        #: contents that are being received
        self.loading: NamespaceContents | None = None
        self.ready = threading.Event()
        self.refused: SuffixError | None = None
        self.sessions: weakref.WeakSet[FollowerSession] = weakref.WeakSet()
        self.last_used = time.monotonic()

    @property
    def in_use(self) -> bool:
        """Whether a session drafts from it."""
        return any(not session.closed for session in tuple(self.sessions))

    def clear(self) -> None:
        """Stop drafting from what others wrote."""
        self.ready.clear()
        self.generation, self.loading = 0, None
        self.copy.clear()


class FollowedTable:
    """The followed namespaces by path. Thread-safe.

    Args:
        new: makes the entry of a path and a tokenizer.
    """

    def __init__(self, new: Callable[[str, str], Followed]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._entries: dict[str, Followed] = {}

    def get(self, path: str) -> Followed | None:
        """The entry of a path, or None."""
        return self._entries.get(path)

    def get_or_create(self, path: str, tokenizer: str) -> tuple[Followed, bool]:
        """The entry of a path, and whether it is new."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is not None:
                entry.tokenizer = entry.tokenizer or tokenizer
                entry.last_used = time.monotonic()
                return entry, False
            entry = self._entries[path] = self._new(path, tokenizer)
            return entry, True

    def values(self) -> list[Followed]:
        """All entries."""
        with self._lock:
            return list(self._entries.values())

    def take_idle(self, seconds: float) -> list[Followed]:
        """Remove the entries that no session has used for so long; returns them."""
        now = time.monotonic()
        with self._lock:
            for entry in self._entries.values():
                if entry.in_use:
                    entry.last_used = now
            idle = [entry for entry in self._entries.values() if entry.last_used < now - seconds]
            for entry in idle:
                del self._entries[entry.path]
        return idle
