"""Methods of a store for readers that follow its log: outputs and deletions in the order of the log."""

from __future__ import annotations

from collections.abc import Collection

from suffixsvc.log_types import LogChanges, LogPosition
from suffixsvc.store.transactions import changes
from suffixsvc.store.transactions.scans import Log
from suffixsvc.types import NamespaceRecord


class LogReading:
    """Positions of a log and the changes after one; a base of the store."""

    _log: Log

    def layout(self) -> tuple[object, object]:
        """Two objects, one of which is another one after a namespace was created or deleted, or was given its
        tokenizer, or a manifest changed. To be compared by identity; the caller keeps references to them."""
        self._log.require_usable()
        snapshot = self._log.snapshot
        return snapshot.names, snapshot.manifests

    def record(self, namespace: str) -> tuple[int, NamespaceRecord] | None:
        """Generation and record of a namespace; None if the log does not hold it."""
        self._log.require_usable()
        row = self._log.snapshot.names.by_path.get(namespace)
        return None if row is None else (row.namespace_id, NamespaceRecord(row.path, row.tokenizer))

    def generation(self, namespace: str) -> int:
        """A number of the namespace, which is greater for a later namespace of the same path.

        Raises:
            UnknownNamespaceError.
        """
        self._log.require_usable()
        return self._log.snapshot.names.require(namespace)

    def position(self) -> LogPosition:
        """The position after everything that the log holds."""
        with self._log.read() as view:
            return changes.position_at(view, view.counters.last_lsn)

    def changes(self, after: LogPosition, generations: Collection[int]) -> LogChanges | None:
        """The next changes of namespaces after a position, a bounded number; none at the end of the log.

        Args:
            generations: of the namespaces, see :meth:`generation`; they need not exist any more.

        Returns:
            None if the log does not lead on from there: it has forgotten deletions since, or it is another
            log, or an older backup of it. The reader then begins again from the contents.
        """
        with self._log.read() as view:
            if not changes.leads_on_from(view, after):
                return None
            return changes.changes_after(view, after.lsn, generations)
