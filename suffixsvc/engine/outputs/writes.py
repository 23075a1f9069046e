"""Appends in flight: from admission to the store's decision.

Write            counts as in flight in its namespace, and its bytes as reserved in the quotas; both end
  │              together
  ├─ LiveWrite   the output of a session, whose text is in the index already
  └─ BulkLoad    outputs that are indexed before the store receives them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack

from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.limits.quota_manager import QuotaManager
from suffixsvc.engine.outputs.unindexing import Unindexer
from suffixsvc.index import NamespaceIndex, OnCommitted
from suffixsvc.store.base import Store
from suffixsvc.types import NamespaceRecord, NewOutput, OutputId, repeated_in


class Write(ABC):
    """One append.

    ::

        begin ── submit ── decided by the store, a transaction at a time ──> ended
          └── abandon ─────────────────────────────────────────────────────> ended

    It ends once, after everything else and regardless of failures, so that waiters (a deletion of the
    namespace) never block forever. After :meth:`submit` the store decides, and :meth:`abandon` has no effect.

    Args:
        index: index of the namespace that is written to.
        outputs: outputs of that namespace.

    Attributes:
        future: the ids, once the outputs are durable; None before :meth:`submit`.
    """

    def __init__(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> None:
        self._index = index
        self._outputs = outputs
        self._create: Sequence[NamespaceRecord] = ()
        self._committed = 0
        #: the store has committed a transaction of it, and so has the namespace
        self._stored = False
        self._on_end = ExitStack()
        self._ended = False
        self.future: Future[list[OutputId]] | None = None

    def begin(
        self, quotas: QuotaManager, catalog: Catalog, tokenizer: str = "", *, live_bytes: int = 0
    ) -> None:
        """Begin the write: it is in flight from now on.

        Args:
            tokenizer: see ``Catalog.begin_write``.
            live_bytes: see ``QuotaManager.admit``.

        Raises:
            LimitExceededError: the outputs do not fit.
            UnknownNamespaceError: the namespace was deleted.
            TokenizerMismatchError: another tokenizer was bound.
        """
        self._on_end.enter_context(quotas.admit(self._index, self._outputs, live_bytes=live_bytes))
        self._create = catalog.begin_write(self._index, tokenizer)
        self._on_end.callback(lambda: catalog.end_write(self._index, self._create, stored=self._stored))

    def submit(self, store: Store) -> Future[list[OutputId]]:
        """Submit the outputs to the store."""
        self.future = store.append(self._outputs, self._create, self._on_decided)
        return self.future

    def abandon(self) -> None:
        """End the write unless it was submitted. Idempotent."""
        if self.future is None:
            self._on_decided(None)

    def _on_decided(self, ids: Sequence[OutputId] | None) -> None:
        if self._ended:
            return
        before = self._committed
        self._stored |= ids is not None
        self._committed += 0 if ids is None else len(ids)
        self._ended = ids is None or self._committed == len(self._outputs)
        try:
            self._apply(before, ids)
        finally:
            if self._ended:
                self._on_end.close()

    @abstractmethod
    def _apply(self, before: int, ids: Sequence[OutputId] | None) -> None:
        """Apply a decision: on the store's thread before the future is done, or in :meth:`abandon`.

        Args:
            before: number of outputs that were decided before.
            ids: ids of the next outputs, which are in the log; None: no further output is committed.
        """


class LiveWrite(Write):
    """The output of a session.

    Args:
        index: index of its namespace.
        output: the output.
        on_committed: see :data:`OnCommitted`; called with None also if the write is abandoned.
    """

    def __init__(self, index: NamespaceIndex, output: NewOutput, on_committed: OnCommitted) -> None:
        super().__init__(index, [output])
        self._on_committed = on_committed

    def _apply(self, before: int, ids: Sequence[OutputId] | None) -> None:
        # an output that was in the log before is in the index as well, so this text of it is removed
        self._on_committed(None if ids is None or repeated_in(ids) else ids[0])


class BulkLoad(Write):
    """Outputs that are indexed, then logged.

    Each method must be called uninterrupted, so that an interrupt finds a consistent state between calls.

    Args:
        index: index of their namespace.
        outputs: the outputs to add.
        unindexer: receives the texts that are indexed and will not be logged; the next ``Unindexer.finish``
            removes them.
    """

    def __init__(self, index: NamespaceIndex, outputs: Sequence[NewOutput], unindexer: Unindexer) -> None:
        super().__init__(index, outputs)
        self._unindexer = unindexer
        #: writer numbers of the outputs that are in the index
        self._writers: list[int] = []

    def insert_next(self) -> None:
        """Insert the texts of the next output into the index."""
        output = self._outputs[len(self._writers)]
        self._index.begin_write()
        try:
            self._writers.append(self._index.insert(output))
        except BaseException:
            self._index.end_write()
            raise

    def _apply(self, before: int, ids: Sequence[OutputId] | None) -> None:
        # An output that was in the log before is in the index as well, so this text of it is removed. Rows of
        # a large load that were committed before it failed are deleted by the store like other outputs.
        if ids is None:
            self._unindexer.queue(self._index, self._outputs[before : len(self._writers)])
            return
        repeated = set(repeated_in(ids))
        self._unindexer.queue(self._index, [self._outputs[before + i] for i in sorted(repeated)])
        failed: Exception | None = None
        for i, output_id in enumerate(ids):
            if i in repeated:
                continue
            try:
                self._index.record_logged(self._outputs[before + i], self._writers[before + i], output_id)
            except Exception as error:  # concerns one output: the others are committed as well
                failed = error
            finally:
                self._index.end_write()
        if failed is not None:
            raise failed
