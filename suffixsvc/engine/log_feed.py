"""The log for readers outside the engine, which follow it: contents of a namespace, then its changes.

    contents   position ──> manifest ──> outputs that no segment holds
    changes    outputs and deletions after a position, in their order; the manifest when it has changed

The contents are read in several transactions while others write: an output that is written meanwhile may be
in them and comes again as a change, and one that is deleted meanwhile may be in them and its deletion comes
as a change. Readers apply changes by output id, so that both are harmless.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator

from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.base.log_rows import rows_of
from suffixsvc.engine.catalog import Catalog
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.log_types import LogChanges, LogPosition, NamespaceContents, SealedContents
from suffixsvc.store.base import Store
from suffixsvc.types import OutputId, StoredOutput


class LogFeed:
    """Contents and changes of the namespaces of one cache. Thread-safe.

    Args:
        store: holds the log. Its commit listener is this feed.
        catalog: the namespaces.
        close_guard: guard of the cache's close.
    """

    def __init__(self, store: Store, catalog: Catalog, close_guard: CloseGuard) -> None:
        self._store, self._catalog, self._close_guard = store, catalog, close_guard
        self._committed = threading.Condition()
        #: number of commits, and of calls of :meth:`wake`
        self._events = 0
        wake = weakref.WeakMethod(self.wake)  # the store's thread must not keep the cache alive
        store.set_commit_listener(lambda _lsn: _call(wake()))

    @property
    def events(self) -> int:
        """A number that rises with every commit."""
        return self._events

    def wake(self) -> None:
        """End the waits of all readers."""
        with self._committed:
            self._events += 1
            self._committed.notify_all()

    def wait(self, events: int, seconds: float) -> bool:
        """Wait for a commit after ``events`` was read, at most ``seconds``; whether there was one."""
        with self._committed:
            return self._committed.wait_for(lambda: self._events != events, seconds)

    def position(self) -> LogPosition:
        """The position after everything that the log holds."""
        with self._close_guard.while_open():
            return self._store.position()

    def contents(self, path: str) -> NamespaceContents:
        """What a namespace holds, without the outputs that no segment holds (:meth:`hot_outputs`).

        Raises:
            UnknownNamespaceError: it does not exist, or is being deleted.
        """
        with self._close_guard.while_open():
            index = self._catalog.readable(path, "")
            position = self._store.position()  # before the rest: what changes meanwhile is a change, too
            generation = self.generation(path)
            sealed = self.sealed(path) if generation else SealedContents()
            return NamespaceContents(
                path, index.tokenizer, generation, position, sealed, index.learner.save()
            )

    def generation(self, path: str) -> int:
        """The present generation of a path; 0 if the log has no namespace there."""
        try:
            return self._store.generation(path)
        except UnknownNamespaceError:
            return 0

    def sealed(self, path: str) -> SealedContents:
        """The segments of a namespace. UnknownNamespaceError: the log does not hold it."""
        with self._close_guard.while_open():
            segments, deleted = self._store.sealed(path)
            return SealedContents(tuple(segments), tuple(deleted))

    def hot_outputs(self, contents: NamespaceContents) -> Iterator[StoredOutput]:
        """The outputs of the contents that no segment of them holds, as they are now, in id order."""
        if not contents.generation:
            return
        at, last = 1, contents.position.lsn
        for segment in contents.sealed.segments:
            yield from self._rows(contents.path, at, min(segment.first_lsn - 1, last))
            at = segment.last_lsn + 1
        yield from self._rows(contents.path, at, last)

    def _rows(self, path: str, first: OutputId, last: OutputId) -> Iterator[StoredOutput]:
        if first <= last:
            yield from rows_of(self._store, path, first, last)

    def changes(self, after: LogPosition, generations: Collection[int]) -> LogChanges | None:
        """See :meth:`suffixsvc.store.base.Store.changes`."""
        with self._close_guard.while_open():
            return self._store.changes(after, generations)


def _call(function: Callable[[], None] | None) -> None:
    """Call a function that may have been collected."""
    if function is not None:
        function()
