"""The log for readers outside the engine, which follow it: contents of a namespace, then its changes.

    contents   position ──> manifest ──> outputs that no segment holds
    changes    outputs and deletions after a position, in their order; the manifest when it has changed

The contents are read in several transactions while others write: an output that is written meanwhile may be
in them and comes again as a change, and one that is deleted meanwhile may be in them and its deletion comes
as a change. Readers apply changes by output id, so that both are harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from suffixsvc.core import Learner
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.base.log_rows import rows_of
from suffixsvc.engine.catalog import Catalog
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.namespace_stats import StepCounts
from suffixsvc.log_types import LogChanges, LogPosition, NamespaceContents, SealedContents
from suffixsvc.runtime.weak_calls import weak_callback
from suffixsvc.store.base import Store
from suffixsvc.types import OutputId, SegmentRecord, StoredOutput


class LogFeed:
    """Contents and changes of the namespaces of one cache. Thread-safe.

    Args:
        store: holds the log. Its commit listener is this feed.
        catalog: the namespaces.
        close_guard: guard of the cache's close.
    """

    def __init__(self, store: Store, catalog: Catalog, close_guard: CloseGuard) -> None:
        self._store, self._catalog, self._close_guard = store, catalog, close_guard
        #: told when a session has written tokens; for one waiting thread
        self.written = catalog.written
        self._committed = threading.Condition()
        self._merging = threading.Lock()  # merges into a learner are serialised
        #: number of commits, and of calls of :meth:`wake`
        self._events = 0
        self._listeners: tuple[Callable[[], None], ...] = ()
        # weak: the store's thread must not keep the cache alive
        store.set_commit_listener(weak_callback(self._on_commit))

    @property
    def events(self) -> int:
        """A number that rises with every commit."""
        return self._events

    def wake(self) -> None:
        """End the waits of all readers."""
        with self._committed:
            self._events += 1
            self._committed.notify_all()
            listeners = self._listeners
        for listener in listeners:
            listener()

    def _on_commit(self, _lsn: OutputId) -> None:
        self.wake()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every commit, on the store's thread: it must be short and not wait."""
        with self._committed:
            self._listeners = (*self._listeners, listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """End the calls of a listener; one may be in progress."""
        with self._committed:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def wait(self, events: int, seconds: float) -> bool:
        """Wait for a commit after ``events`` was read, at most ``seconds``; whether there was one."""
        with self._committed:
            return self._committed.wait_for(lambda: self._events != events, seconds)

    def position(self) -> LogPosition:
        """The position after everything that the log holds."""
        with self._close_guard.while_open():
            return self._store.position()

    def contents(self, path: str, principal: str = "") -> NamespaceContents:
        """What a namespace holds, without the outputs that no segment holds (:meth:`hot_outputs`).

        Args:
            principal: whose learned tables are in it.

        Raises:
            UnknownNamespaceError: it does not exist, or is being deleted.
        """
        with self._close_guard.while_open():
            index = self._catalog.readable(path, "")
            position = self._store.position()  # before the rest: what changes meanwhile is a change, too
            generation = self.generation(path)
            sealed = self.sealed(path) if generation else SealedContents()
            learned = _learned(self._catalog.learner_of(index, principal))
            return NamespaceContents(path, index.tokenizer, generation, position, sealed, learned)

    def generation(self, path: str) -> int:
        """The present generation of a path; 0 if the log has no namespace there."""
        try:
            return self._store.generation(path)
        except UnknownNamespaceError:
            return 0

    def layout(self) -> tuple[object, object]:
        """See :meth:`suffixsvc.store.base.Store.layout`."""
        with self._close_guard.while_open():
            return self._store.layout()

    def record(self, path: str) -> tuple[int, str]:
        """Generation and tokenizer fingerprint of a path; (0, "") if the log has no namespace there."""
        with self._close_guard.while_open():
            found = self._store.record(path)
            return (0, "") if found is None else (found[0], found[1].tokenizer)

    def segments(self, path: str) -> tuple[SegmentRecord, ...]:
        """The manifest of a namespace; empty if the log does not hold it. It reads memory only."""
        with self._close_guard.while_open():
            try:
                return tuple(self._store.segments(path))
            except UnknownNamespaceError:
                return ()

    @property
    def segment_folder(self) -> Path | None:
        """The folder of segment files, which need not exist; None for a cache in memory."""
        return self._store.segment_folder

    def drafting(self, path: str) -> bool:
        """Whether the policy of a path lets sessions draft."""
        return self._catalog.policy_of(path).drafting is not False

    def unlearned(self, path: str) -> int:
        """How often what drafting learned in a namespace was reset since its index was made."""
        index = self._catalog.get(path)
        return 0 if index is None else index.unlearned

    def record_use(
        self,
        path: str,
        output_ids: Sequence[OutputId],
        counts: StepCounts,
        learned: bytes = b"",
        principal: str = "",
    ) -> bool:
        """Record what a reader did with a namespace. Unknown namespaces and outputs are ignored.

        Args:
            output_ids: outputs that it drafted from, the last one used last.
            counts: its counters.
            learned: what its drafting learned (``suffixsvc.core.Learner.difference``); b"": nothing.
            principal: whose reader it is: the tables of others do not change.

        Returns:
            Whether ``learned`` could be merged.
        """
        with self._close_guard.while_open():
            index = self._catalog.get(path)
            if index is None:
                return True
            index.add_reported(counts)
            index.note_use(output_ids)
            with self._merging:
                return not learned or self._catalog.learner_of(index, principal).merge(learned)

    def sealed(self, path: str) -> SealedContents:
        """The segments of a namespace. UnknownNamespaceError: the log does not hold it."""
        with self._close_guard.while_open():
            segments, deleted = self._store.sealed(path)
            return SealedContents(tuple(segments), tuple(deleted))

    def publishes(self, path: str) -> bool:
        """Whether readers without a full grant get the published runs of a path."""
        return self._catalog.policies.of(path).publishing is not None

    def publishing(self, path: str) -> NamespaceIndex:
        """The namespace whose published runs the readers of a path get; it need not be in the log.

        Raises:
            SuffixError: it cannot be opened.
        """
        with self._close_guard.while_open():
            return self._catalog.readable(path, "")

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


def _learned(learner: Learner) -> bytes:
    """What drafting has learned; b"" for the shipped tables, which readers have."""
    return learner.save() if learner.own_bytes else b""
