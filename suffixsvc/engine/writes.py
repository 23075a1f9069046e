"""Appends on their way into the log, from their admission until the store has decided.

Write            counts as in flight in its namespace, and its bytes as coming in the limits; both end in
  │              one place
  ├─ LiveWrite   the output of a session, whose text is in the index as it is written
  └─ BulkLoad    outputs that are indexed before the store gets them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack

from suffixsvc.engine.indexes import Indexes
from suffixsvc.engine.room import Room
from suffixsvc.engine.unindexing import Unindexer
from suffixsvc.index import Decided, NamespaceIndex
from suffixsvc.types import NamespaceRecord, NewOutput, OutputId, Store, repeated_in

__all__ = ["BulkLoad", "LiveWrite"]


class Write(ABC):
    """One append.

    ::

        begin ── hand_over ── decided, by the store, a transaction at a time ──> ended
          └── take_back ───────────────────────────────────────────────────────> ended

    It ends once, after everything else and whatever failed in that, so that what waits for it (a deletion of
    the namespace) never waits for ever. What was handed over is the store's to decide: :meth:`take_back` has
    no effect on it.

    Args:
        index: of the namespace that is written to.
        outputs: all of that namespace.
    """

    def __init__(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> None:
        self._index = index
        self._outputs = outputs
        self._create: Sequence[NamespaceRecord] = ()
        self._kept = 0
        #: the store has made a transaction of it, and so holds the namespace
        self._stored = False
        self._ending = ExitStack()
        self._ended = False
        #: the ids, once the outputs are durable; None before the store has the write
        self.future: Future[list[OutputId]] | None = None

    def begin(self, room: Room, indexes: Indexes, *, live: bool = False) -> None:
        """It is in flight from now on.

        Args:
            live: see ``Room.admit``.

        Raises:
            LimitExceededError: there is no room. UnknownNamespaceError: the namespace was deleted.
        """
        self._ending.callback(room.admit(self._index, self._outputs, live=live))
        self._create = indexes.begin_write(self._index)
        self._ending.callback(lambda: indexes.end_write(self._index, self._create, kept=self._stored))

    def hand_over(self, store: Store) -> Future[list[OutputId]]:
        """Give it to the store."""
        self.future = store.append(self._outputs, self._create, self._decided)
        return self.future

    def take_back(self) -> None:
        """Nothing comes of it, unless the store has it. Idempotent."""
        if self.future is None:
            self._decided(None)

    def _decided(self, ids: Sequence[OutputId] | None) -> None:
        if self._ended:
            return
        before = self._kept
        self._stored |= ids is not None
        self._kept += 0 if ids is None else len(ids)
        self._ended = ids is None or self._kept == len(self._outputs)
        try:
            self._decide(before, ids)
        finally:
            if self._ended:
                self._ending.close()

    @abstractmethod
    def _decide(self, before: int, ids: Sequence[OutputId] | None) -> None:
        """The store has decided. On its thread, before the future is done; or the write is taken back.

        Args:
            before: of how many outputs it had decided before.
            ids: of the next ones, in the log; None: nothing more is kept.
        """


class LiveWrite(Write):
    """The output of a session.

    Args:
        index: of its namespace.
        output: what it wrote.
        decided: see :data:`Decided`; called with None as well when the write is taken back.
    """

    def __init__(self, index: NamespaceIndex, output: NewOutput, decided: Decided) -> None:
        super().__init__(index, [output])
        self._decided_one = decided

    def _decide(self, before: int, ids: Sequence[OutputId] | None) -> None:
        """One that is in the log already is in the index as well: this text of it goes."""
        self._decided_one(None if ids is None or repeated_in(ids) else ids[0])


class BulkLoad(Write):
    """Outputs that are indexed, then logged. Each method is to be called uninterrupted: between two of them
    an interrupt finds nothing half done.

    Args:
        index: of their namespace.
        outputs: to be added.
        unindexer: gets the texts that are in the index and will not be in the log; the next
            ``Unindexer.finish`` takes them out.
    """

    def __init__(self, index: NamespaceIndex, outputs: Sequence[NewOutput], unindexer: Unindexer) -> None:
        super().__init__(index, outputs)
        self._unindexer = unindexer
        #: of the outputs that are in the index
        self._writers: list[int] = []

    def insert_next(self) -> None:
        """Put the texts of one more output into the index."""
        output = self._outputs[len(self._writers)]
        self._index.begin_write()
        try:
            self._writers.append(self._index.insert(output))
        except BaseException:
            self._index.end_write()
            raise

    def _decide(self, before: int, ids: Sequence[OutputId] | None) -> None:
        """An output that is in the log already is in the index as well: this text of it goes again. What was
        kept of a large load before it failed, the store deletes like any other output."""
        if ids is None:
            self._unindexer.queue(self._index, self._outputs[before : len(self._writers)])
            return
        repeated = set(repeated_in(ids))
        self._unindexer.queue(self._index, [self._outputs[before + place] for place in sorted(repeated)])
        failed: Exception | None = None
        for place, output_id in enumerate(ids):
            if place in repeated:
                continue
            try:
                self._index.kept(self._outputs[before + place], self._writers[before + place], output_id)
            except Exception as error:  # of one output: the others are kept as well
                failed = error
            finally:
                self._index.end_write()
        if failed is not None:
            raise failed
