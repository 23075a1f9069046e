"""Deletion of namespaces, and by selection: outputs, live text, and what drafting learned from both.

    live text   withdrawn: no other session drafts from it, and its session stores nothing any more
    barrier     what selected sessions closed before that is in the log
    log         the learned tables first, then the selected rows, each with a request to erase them
    index       texts removed, learned tables replaced by the initial ones
    published   runs that may contain selected text are withdrawn, and built again

The bytes on the disk are the second stage (``suffixsvc.engine.sealing.eraser``).
"""

from __future__ import annotations

from suffixsvc.config import validate_namespace
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.live_sessions import LiveSessions
from suffixsvc.engine.outputs.output_log import OutputLog
from suffixsvc.engine.publishing.publisher import Publisher
from suffixsvc.engine.sealing.sealer import Sealer
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.selection import Selection
from suffixsvc.store.base import Store
from suffixsvc.types import Deletion


class Deleter:
    """Deletes namespaces and what selections take, in one cache. Thread-safe.

    Args:
        store: the log.
        catalog: the namespaces of the cache.
        close_guard: guard of the cache's close.
        outputs: the outputs of the cache.
        sessions: its live sessions.
        publisher: of its published runs.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        close_guard: CloseGuard,
        outputs: OutputLog,
        sessions: LiveSessions,
        publisher: Publisher,
    ) -> None:
        self._store, self._catalog, self._close_guard = store, catalog, close_guard
        self._outputs, self._sessions, self._publisher = outputs, sessions, publisher

    def delete_namespace(self, path: str, sealer: Sealer | None, *, force: bool) -> int:
        """Delete a namespace; returns the number of its outputs. See ``SuffixCache.delete_namespace``.

        Args:
            sealer: moves nothing meanwhile; None in a cache in memory.
        """
        self._sessions.require_writable(validate_namespace(path))
        with self._close_guard.while_open():
            self._sessions.reap_abandoned()
            index = self._catalog.begin_delete(path, force=force)
            outputs = 0
            if index.stored:
                try:
                    with self._publisher.withdrawn(path):
                        outputs = self._store.delete_namespace(path, self._outputs.finish_removals)
                except UnknownNamespaceError:
                    pass  # an earlier call deleted it, and was interrupted after that
                finally:
                    self._outputs.finish_removals()
                if sealer is not None:
                    sealer.loader.remove_all(index)
            self._outputs.quotas.usage.drop(index)
            self._catalog.end_delete(index)
            return outputs

    def delete(self, selection: Selection, *, superseded: bool = False) -> Deletion:
        """Delete what a selection takes. See ``SuffixCache.delete``."""
        with self._close_guard.while_open():
            self._sessions.reap_abandoned()
            if selection.namespace:
                indexes = [self._catalog.index_of(selection.namespace)]
            else:
                indexes = [index for index in self._catalog.values() if not index.deleted]
            sessions = {index: self._withdraw(index, selection) for index in indexes}
            if any(sessions.values()):
                self._catalog.written.notify()  # readers of live text
            if selection.takes_sessions:
                self._store.barrier()
            outputs = {
                index: self._delete_stored(index, selection, sessions[index], superseded=superseded)
                for index in indexes
            }
        changed = [index.path for index in indexes if sessions[index] or outputs[index]]
        return Deletion(sum(outputs.values()), sum(sessions.values()), tuple(sorted(changed)))

    @staticmethod
    def _withdraw(index: NamespaceIndex, selection: Selection) -> int:
        return index.withdraw_live(selection) if selection.takes_sessions else 0

    def _delete_stored(
        self, index: NamespaceIndex, selection: Selection, sessions: int, *, superseded: bool
    ) -> int:
        """Delete selected outputs of a namespace, and unlearn; returns how many."""
        try:
            ids = self._store.select(index.path, selection) if index.stored else []
            if superseded:
                return self._outputs.forget_many(index.path, ids)
            if not ids and not sessions:
                return 0
            if index.stored:  # before the rows: the tables must not outlive them
                self._catalog.drop_learned(index)
            with self._publisher.withdrawn(index.path):
                deleted = self._outputs.forget_many(index.path, ids, erase=True)
        except UnknownNamespaceError:
            if index.deleted:  # concurrently, with all that was selected
                return 0
            raise
        index.unlearn()
        return deleted
