"""The store: the durable log of outputs, from which every index is derived."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from suffixsvc.clock import ExpiryCutoff, StoreClock
from suffixsvc.errors import StoreError, StoreFullError, SuffixError
from suffixsvc.selection import Selection
from suffixsvc.store.log_reading import LogReading
from suffixsvc.store.manifests import Manifests
from suffixsvc.store.records.keys import LAST_LSN, state_key
from suffixsvc.store.records.table_records import decode_state
from suffixsvc.store.records.validation import (
    check_namespace,
    check_now,
    check_output,
    check_state_name,
)
from suffixsvc.store.transactions import erasure, removal
from suffixsvc.store.transactions.operations import Operation, append_operation
from suffixsvc.store.transactions.scans import Log, Scans
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import (
    IncompleteOutput,
    NamespaceRecord,
    NewOutput,
    OutputId,
    OutputOutline,
    StoredOutput,
    StoreStats,
)

T = TypeVar("T")

#: rows of one read transaction: an old snapshot prevents the reuse of freed pages
_OUTLINE_ROWS: Final = 4096
#: rows of one transaction of a deletion of many
_DELETED_ROWS: Final = 256
#: tokens of one transaction that deletes expired outputs; one row in any case
_DELETED_TOKENS: Final = 1 << 20


class Store(LogReading, Manifests, ABC):
    """The durable log of outputs. LMDB and memory implement it.

    Thread-safe. Every method raises :class:`suffixsvc.errors.StoreError` or a subclass.

    Args:
        log: the open log.
        clock: stamps outputs; their TTL is counted in it.
    """

    #: whether a large append takes several transactions
    _appends_in_slices = True

    def __init__(self, log: Log, clock: StoreClock) -> None:
        self._log = log
        self._scans = Scans(log)
        #: the last output when the store was opened
        self._opened_lsn = log.snapshot.counters.last_lsn
        self.clock = clock

    @abstractmethod
    def _submit(self, operation: Operation[T]) -> Future[T]:
        """Run an operation in a write transaction."""

    def _call(self, apply: Callable[[WriteView], T], size: int = 0, *, frees: bool = False) -> T:
        """Run ``apply`` in a write transaction and wait."""
        self._require_may_wait()
        return self._submit(Operation(apply, size, frees=frees)).result()

    def _require_may_wait(self) -> None:  # of a store with a thread
        """Raise StoreError on the thread that runs the operations."""

    def _in_slices(self, work: Callable[[int], T]) -> Iterator[T]:
        """Call ``work`` repeatedly with the row limit of a transaction, halved when there is no room."""
        rows = _DELETED_ROWS
        while True:
            try:
                done = work(rows)
            except StoreFullError:
                if rows == 1:
                    raise
                rows //= 2
            else:
                yield done

    # --- namespaces ---------------------------------------------------------------------------------

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace or return the existing record. Durable when it returns.

        An empty fingerprint in the existing record is filled in.

        Raises:
            TokenizerMismatchError: the existing record has another fingerprint.
        """
        check_namespace(record)
        return self._call(lambda view: view.add_namespace(record))

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, ordered by path."""
        self._log.require_usable()
        rows = self._log.snapshot.names.by_path.values()
        return sorted((NamespaceRecord(r.path, r.tokenizer) for r in rows), key=lambda r: r.path)

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        """Delete a namespace durably, with its outputs, states, segment records and tombstones.

        The path is unknown from the first transaction on, and cannot be created again before the last one.
        The deletion is split into bounded transactions: after an error, another call or the next open
        continues it. Neither output ids nor the internal number of the namespace are reused, so an output, a
        segment or a state of a deleted namespace never appears in a later one of the same path.

        Args:
            between: called in this thread between two transactions, so that the caller can process the rows
                that the deletion listener received instead of collecting all of them.

        Returns:
            The number of outputs that the namespace had.
        Raises:
            UnknownNamespaceError: the namespace does not exist.
        """
        number = self._call(lambda view: removal.mark_deleting(view, path), frees=True)
        return self._delete_rest(number, between)

    def _delete_rest(self, number: int, between: Callable[[], object] | None = None) -> int:
        outputs = 0
        for deleted, is_finished in self._in_slices(
            lambda rows: self._call(lambda view: removal.delete_slice(view, number, rows), frees=True)
        ):
            outputs += deleted
            if is_finished:
                break
            if between is not None:
                between()
        return outputs

    # --- outputs ------------------------------------------------------------------------------------

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        on_committed: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        """Log outputs, all or none, in order; the future holds their ids once they are durable.

        Appends of several callers share a commit. A large append takes several transactions: parts of it can
        be read before the future is done, and other appends may come between. StoreFullError and other
        errors arrive through the future.

        An output whose uuid exists in its namespace is not logged again: its id is that of the existing
        output, and :func:`repeated_in` lists it. InvalidInputError if the existing output has other tokens.

        Args:
            create: namespaces that are created, or given their fingerprint, in the same transaction, as by
                :meth:`add_namespace`.
            on_committed: called on the store's thread before the future is done: after every transaction
                with the ids that it committed, before the deletion listener receives what this commit or a
                later one deleted; once with None where the rest is not committed. Rows committed before that
                go to the deletion listener when they are rolled back. It must be short and must not wait for
                the store.
        """
        try:
            for record in create:
                check_namespace(record)
            checked = [check_output(output) for output in outputs]
            operation = append_operation(
                checked, self.clock.now_us(), create, on_committed, in_slices=self._appends_in_slices
            )
        except SuffixError as e:
            operation = Operation(lambda view: [], on_committed=on_committed)
            operation.fail(e)
            return operation.future
        return self._submit(operation)

    def get(self, output_id: OutputId) -> StoredOutput:
        """One output. UnknownOutputError if it does not exist."""
        with self._log.read() as view:
            return view.output(output_id)

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        """Outputs with id >= from_lsn in id order, of one namespace or of all.

        A consistent snapshot of the moment at which the first one is read.
        """
        self._log.require_usable()
        number = None if namespace is None else self._log.snapshot.names.require(namespace)
        return self._scans.scan(number, from_lsn)

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        """The namespace's outputs in id order, without their tokens.

        Outputs written or deleted during the iteration may be in it or not.
        """
        first = 0
        while True:
            with self._log.read() as view:
                part = view.outline(view.names.require(namespace), first, _OUTLINE_ROWS)
            yield from part
            if len(part) < _OUTLINE_ROWS:
                return
            first = part[-1].output_id + 1

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        """Ids of the namespace's outputs in first..last (both included), ascending, at most ``limit``."""
        with self._log.read() as view:
            return view.lsns(view.names.require(namespace), first, last, limit)

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        """Incomplete outputs of sessions with this id, in id order. The cost is independent of the size of
        the store."""
        with self._log.read() as view:
            return view.incomplete(session_id)

    # --- deletions of outputs -----------------------------------------------------------------------

    @abstractmethod
    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` after every commit that deleted outputs, with these.

        On the store's thread, in the order of the commits, before the calls return that the commit was for.
        It must be short and must not wait for the store. At most one; it replaces the one before.
        """

    @abstractmethod
    def set_commit_listener(self, listener: Callable[[OutputId], None]) -> None:
        """Call ``listener`` with the last LSN after every commit, after the deletion listener.

        As :meth:`set_deletion_listener` otherwise.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until the listener has received what was deleted by commits before this call."""

    def forget_many(
        self, namespace: str, output_ids: Sequence[OutputId], *, erase: bool = False
    ) -> list[StoredOutput]:
        """Durably delete those of the outputs that exist; returns them, ordered by id.

        A payload is deleted with the last output that refers to it. Not atomic: after a crash some of the
        outputs may remain.

        Args:
            erase: request the erasure of their texts from the disk, in the transactions that delete them.
        """
        self._log.snapshot.names.require(namespace)
        left = sorted(set(output_ids))
        removed: list[StoredOutput] = []

        def delete(rows: int) -> int:
            removed.extend(
                self._call(
                    lambda view: erasure.delete_many(view, namespace, left[:rows], erase=erase), frees=True
                )
            )
            return rows

        for rows in self._in_slices(delete):
            del left[:rows]
            if not left:
                break
        return removed

    def select(self, namespace: str, selection: Selection) -> list[OutputId]:
        """Ids of the namespace's outputs that a selection takes, ascending.

        Outputs written or deleted meanwhile may be among them or not.
        """
        age = selection.older_than_seconds
        # an age may be any finite number: its microseconds may not be one
        before_us = (
            LAST_LSN if age is None else max(-1, self.clock.now_us() - round(min(age * 1e6, LAST_LSN)))
        )
        if selection.output_ids is not None:
            with self._log.read() as view:
                number = view.names.require(namespace)
                given = [view.select(number, selection, lsn, 1, before_us)[0] for lsn in selection.output_ids]
            return sorted({lsn for found in given for lsn in found} & set(selection.output_ids))
        ids: list[OutputId] = []
        last = 0
        while True:
            with self._log.read() as view:
                found, last = view.select(
                    view.names.require(namespace), selection, last + 1, _OUTLINE_ROWS, before_us
                )
            ids += found
            if not last:
                return ids

    # --- erasure: of deleted texts from the disk ------------------------------------------------------

    def erasure_due(self) -> OutputId:
        """LSN of the last deletion whose texts are to be erased from the disk; 0: none is due."""
        self._log.require_usable()
        return self._log.snapshot.erasure

    def request_erasure(self) -> None:
        """Request the erasure of everything that was deleted. Durable when it returns."""
        self._call(erasure.request, frees=True)

    @abstractmethod
    def scrub(self) -> None:
        """Overwrite what the log's files hold of rows that were deleted before this call.

        Reads and drafts continue; writes wait. Interrupted at any point it leaves the log unchanged.
        """

    def finish_erasure(self, lsn: OutputId) -> None:
        """Record that the erasure due at ``lsn`` is done: no other file of the folder holds the texts."""
        self._call(lambda view: erasure.finish(view, lsn), frees=True)

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        """Durably delete outputs whose TTL has passed, in one transaction; returns them.

        At most as many as a transaction takes: call it until the result is empty.

        Args:
            now: seconds in store time, instead of the moment of the call and without the grace period of
                :mod:`suffixsvc.clock`.
        """
        cutoff = self.clock.expiry_cutoff() if now is None else ExpiryCutoff.at(check_now(now))

        def delete(rows: int) -> list[StoredOutput]:
            return self._call(
                lambda view: view.delete_expired(cutoff, self._opened_lsn, rows, _DELETED_TOKENS), frees=True
            )

        removed = next(self._in_slices(delete))
        return sorted(removed, key=lambda stored: stored.output_id)

    # --- access control of servers ------------------------------------------------------------------

    @property
    def access_controlled(self) -> bool:
        """Whether a server with access control has served the log."""
        self._log.require_usable()
        return self._log.snapshot.access_controlled

    def set_access_controlled(self, value: bool) -> None:
        """Record it, or that the log is open to all again. Durable when it returns."""
        if value != self.access_controlled:
            self._call(lambda view: view.put_access_controlled(value), frees=True)

    # --- states, health -----------------------------------------------------------------------------

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Store a small derived blob (learned tables) with a namespace. Durable when it returns."""
        check_state_name(name)
        blob = bytes(value)
        self._call(lambda view: view.put_state(namespace, name, blob), len(blob))

    def drop_state(self, namespace: str, name: str) -> bool:
        """Delete a state durably, and request its erasure from the disk; whether there was one."""
        check_state_name(name)
        return self._call(lambda view: erasure.drop_state(view, namespace, name), frees=True)

    def state_names(self, namespace: str, prefix: str) -> list[str]:
        """The names of a namespace's states that begin with a prefix, ordered."""
        check_state_name(prefix)
        with self._log.read() as view:
            first = state_key(view.names.require(namespace), prefix)
            head = len(first) - len(prefix.encode())
            found = view.tables.keys("state", first, first + b"\xff")  # after every name, as they are UTF-8
            return [key[head:].decode() for key in found]

    def get_state(self, namespace: str, name: str) -> bytes | None:
        """The blob of the last :meth:`put_state`, or None."""
        check_state_name(name)
        with self._log.read() as view:
            key = state_key(view.names.require(namespace), name)
            raw = view.tables.get("state", key)
            return None if raw is None else decode_state(raw, key)

    @abstractmethod
    def failure(self) -> StoreError | None:
        """Why appends fail now (out of space, I/O error, closed); None: no failure is known.

        A store recovers without a restart: from a lack of space when there is space again, from an I/O error
        when the disk answers again. It retries periodically and with every write.
        """

    @property
    def last_lsn(self) -> OutputId:
        """The last LSN of the log; also after a failure or the close."""
        return self._log.snapshot.counters.last_lsn

    def stats(self) -> StoreStats:
        """Counts and sizes of the store."""
        self._log.require_usable()
        counters = self._log.snapshot.counters
        return StoreStats(
            outputs=counters.outputs,
            payloads=counters.payloads,
            tokens=counters.tokens,
            bytes_used=self._log.disk_bytes(),
            last_lsn=counters.last_lsn,
            expiry_grace_seconds=self.clock.grace_seconds,
        )

    @abstractmethod
    def check(self) -> None:
        """Verify every row and counter; StoreCorruptError names the first broken invariant."""

    @abstractmethod
    def close(self) -> None:
        """Flush pending writes and release the lock. Idempotent."""
