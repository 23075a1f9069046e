"""The durable store: an LMDB log in one folder, open in one process. Writes go through the writer thread."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

import structlog

from suffixsvc.clock import ExpiryCutoff, StoreClock, SystemTime, TimeSource
from suffixsvc.config import Limits
from suffixsvc.errors import InvalidConfigError, StoreClosedError, StoreError, StoreFullError, SuffixError
from suffixsvc.store.checker import check_view
from suffixsvc.store.files import datafile
from suffixsvc.store.files.folder import prepare_folder
from suffixsvc.store.lmdb_reader import LmdbReader
from suffixsvc.store.records.clock_record import report_gap
from suffixsvc.store.records.output_records import SCHEMA_VERSION
from suffixsvc.store.records.validation import check_namespace, check_now, check_output, check_state_name
from suffixsvc.store.transactions import removal
from suffixsvc.store.transactions.databases import new_node_id
from suffixsvc.store.transactions.environment import Environment, round_up_map_size
from suffixsvc.store.transactions.operations import Operation, Undo, append_operation
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.store.writer import Writer
from suffixsvc.types import NamespaceRecord, NewOutput, OutputId, SegmentRecord, StoredOutput, StoreStats

__all__ = ["MIN_LIMIT_BYTES", "LmdbStore"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: an empty store needs a few dozen pages, and deletions need working space
MIN_LIMIT_BYTES: Final = 1 << 20
_DEFAULT_MAP_BYTES: Final = 4 << 20
#: rows of one transaction of a deletion of many
_DELETED_ROWS: Final = 256
#: tokens of one transaction that deletes expired outputs; one row in any case
_DELETED_TOKENS: Final = 1 << 20
#: longest time between two clock records of an open store without other writes
_CLOCK_PERIOD_SECONDS: Final = 600.0


class LmdbStore(LmdbReader):
    """A :class:`suffixsvc.types.Store` in a folder.

    Thread-safe. Belongs to the process that opened it: after a fork the child gets StoreClosedError.
    Futures resolve on the writer thread; their callbacks must not call the store and wait.

    Args:
        path: the folder; created where it is missing.
        map_bytes_initial: the file's first size; it doubles as needed.
        limit_bytes: maximum size of the file; appends beyond it raise StoreFullError. A small part is
            reserved so that deletions always work. At least ``MIN_LIMIT_BYTES``.
        sync: False acknowledges before the data is on the disk: acknowledged data then survives the end of
            the process, but a power cut can destroy the whole file.
        progress: called with (done, total) bytes while an existing file is verified.
        grace_seconds: how long outputs are retained that are due only because the wall clock moved while the
            folder was closed (:mod:`suffixsvc.clock`).
        clock: the clocks of the machine.

    Raises:
        StoreLockedError: the folder is open already.
        StoreForeignError: a file is not one of suffixsvc's, or has another schema version.
        StoreCorruptError: a file is truncated or damaged.
        StoreFullError, StoreError: the folder cannot be created or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        map_bytes_initial: int = _DEFAULT_MAP_BYTES,
        limit_bytes: int = Limits().max_store_bytes,
        sync: bool = True,
        progress: Callable[[int, int], None] | None = None,
        grace_seconds: float = Limits().expiry_grace_seconds,
        clock: TimeSource | None = None,
    ) -> None:
        for name, value, smallest in (
            ("limit_bytes", limit_bytes, MIN_LIMIT_BYTES),
            ("map_bytes_initial", map_bytes_initial, 1),
        ):
            if type(value) is not int or value < smallest:
                raise InvalidConfigError(f"{name} must be an integer >= {smallest}", got=repr(value))
        folder = os.path.abspath(os.fspath(path))
        limit = limit_bytes - limit_bytes % datafile.PAGE_MULTIPLE
        append_cap = limit - _reserve(limit)
        prepare_folder(folder)
        source = SystemTime() if clock is None else clock
        self._limit = limit_bytes
        environment = Environment(
            folder,
            map_bytes_initial=min(round_up_map_size(max(map_bytes_initial, 256 << 10)), append_cap),
            map_bytes_cap=append_cap,
            sync=sync,
            created_us=check_now(source.wall()),
            progress=progress,
            sync_point=self._sync_point,
        )
        super().__init__(environment)
        self._clock = StoreClock(environment.stored_clock, grace_seconds=grace_seconds, source=source)
        self._clock_stored_at = self._clock.now()
        self._opened_lsn = environment.snapshot.counters.last_lsn
        self._opened_txn = environment.snapshot.counters.txn
        with self._view() as view:
            has_grace_outputs = view.any_expired_in_gap(self._clock.expiry_cutoff())
        report_gap(self._clock, environment.path, has_grace_outputs)
        self._writer = writer = Writer(
            environment,
            append_cap=append_cap,
            free_cap=limit,
            on_deleted=self._scans.record_deletions,
            clock=self._clock,
            sync_point=self._sync_point,
        )
        # also runs at interpreter exit, while the (daemon) writer thread still does
        self._finalizer = weakref.finalize(self, _shut_down, environment.pid, writer)
        try:
            if environment.schema < SCHEMA_VERSION:
                self._upgrade()
            self._undo_unfinished()
            self._finish_deletions()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _sync_point(_name: str) -> None:
        """See :mod:`suffixsvc.runtime.sync_points`."""

    def _upgrade(self) -> None:
        """Upgrade the folder to the current schema, which earlier releases refuse to open.

        They would delete rows and leave their tombstones, or the entries of their uuids.
        """
        environment = self._environment
        try:
            self._writer.call(
                Operation(
                    lambda view: view.upgrade(environment.add_databases(view.txn), new_node_id()), frees=True
                )
            )
        except StoreFullError as error:  # served in the old schema
            log.warning("no room for the new schema", folder=environment.path, error=str(error))
            return
        environment.reload()
        log.info("data folder upgraded", folder=environment.path, schema=environment.schema)

    def _undo_unfinished(self) -> None:
        """Delete the rows of appends of several transactions that a crash interrupted.

        The folder opens even if that fails for now: space can only be freed in an open store.
        """
        with self._view() as view:
            found = view.unfinished()
        for ranges in found:
            left = [lsn for first, last in ranges for lsn in range(first, last + 1)]
            log.info("unfinished append found", folder=self._environment.path, outputs=len(left))
            self._writer.undo_append(Undo(left))

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace, or fill in its fingerprint; durable when it returns."""
        check_namespace(record)
        return self._writer.call(Operation(lambda view: view.add_namespace(record)))

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        """Delete a namespace in bounded transactions; return its number of outputs."""
        number = self._writer.call(Operation(lambda view: removal.mark_deleting(view, path), frees=True))
        return self._delete_rest(number, between)

    def _finish_deletions(self) -> None:
        """Continue deletions of namespaces that a crash or a full disk interrupted."""
        for row in list(self._environment.snapshot.names.deleting.values()):
            try:
                outputs = self._delete_rest(row.namespace_id)
            except StoreFullError as error:  # the remaining rows are not visible
                log.warning("no room to finish a deletion", namespace=row.path, error=str(error))
            else:
                log.info("deletion finished", namespace=row.path, outputs=outputs)

    def _delete_rest(self, number: int, between: Callable[[], object] | None = None) -> int:
        outputs = 0
        for part in self._in_slices(lambda rows: self._delete_part(number, rows)):
            outputs += part.outputs
            if part.finished:
                return outputs
            if between is not None:
                between()
        raise AssertionError("_in_slices ended before the deletion")

    def _delete_part(self, number: int, rows: int) -> removal.DeletedSlice:
        return self._writer.call(Operation(lambda view: removal.delete_slice(view, number, rows), frees=True))

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        on_committed: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        """Log outputs, all or none, in order; the future holds their ids once they are durable."""
        operation: Operation[list[OutputId]]
        try:
            for record in create:
                check_namespace(record)
            checked = [check_output(output) for output in outputs]
            written_us = self._clock.now_us()
        except SuffixError as e:
            operation = Operation(lambda view: [], on_committed=on_committed)
            operation.fail(e)
            return operation.future
        return self._writer.submit(append_operation(checked, written_us, create, on_committed))

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` on the writer thread after every commit that deleted outputs, with these."""
        self._writer.listener = listener

    def barrier(self) -> None:
        """Wait until the deletion listener has received the deletions of earlier commits."""
        self._writer.call_between_transactions(lambda: None)

    def forget(self, namespace: str, output_id: OutputId) -> StoredOutput:
        """Delete one output durably and return it; UnknownOutputError if it is not there."""
        return self._writer.call(Operation(lambda view: view.delete(output_id, namespace), frees=True))

    def forget_many(self, namespace: str, output_ids: Sequence[OutputId]) -> list[StoredOutput]:
        """Delete those of the outputs that are there, in bounded transactions; return them by id."""
        self._environment.snapshot.names.require(namespace)
        ids = sorted(set(output_ids))
        removed: list[StoredOutput] = []
        done = 0

        def delete(rows: int) -> int:
            part = ids[done : done + rows]
            removed.extend(self._delete(lambda view: view.delete_many(namespace, part)))
            return len(part)

        for rows in self._in_slices(delete):
            done += rows
            if done == len(ids):
                break
        return removed

    @property
    def clock(self) -> StoreClock:
        """The clock that stamps outputs and that their TTL is counted in."""
        return self._clock

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        """Delete expired outputs in one transaction and return them; call it until it returns none.

        Args:
            now: seconds in store time; without the grace period of :mod:`suffixsvc.clock`.
        """
        cutoff = self._clock.expiry_cutoff() if now is None else ExpiryCutoff.at(check_now(now))
        self._store_clock(_CLOCK_PERIOD_SECONDS)

        def delete(rows: int) -> list[StoredOutput]:
            return self._delete(
                lambda view: view.delete_expired(cutoff, self._opened_lsn, rows, _DELETED_TOKENS)
            )

        removed = next(self._in_slices(delete))
        return sorted(removed, key=lambda stored: stored.output_id)

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

    def _delete(self, apply: Callable[[WriteView], list[StoredOutput]]) -> list[StoredOutput]:
        return self._writer.call(Operation(apply, frees=True))

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        """Add a segment of these outputs (id -> tokens) to the manifest; ManifestError changes nothing."""
        return self._writer.call(
            Operation(lambda view: view.add_segment(namespace, name, file_bytes, outputs), 1024)
        )

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        """Replace adjacent segments by one; remove the tombstones of ``left_out``."""
        return self._writer.call(
            Operation(
                lambda view: view.replace_segments(namespace, names, name, file_bytes, left_out),
                1024,
                frees=True,
            )
        )

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        """Remove segments and the tombstones of their ranges from the manifest."""
        self._writer.call(Operation(lambda view: view.drop_segments(namespace, names), frees=True))

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Store a small derived blob with a namespace; durable when it returns."""
        check_state_name(name)
        blob = bytes(value)
        self._writer.call(Operation(lambda view: view.put_state(namespace, name, blob), len(blob)))

    def failure(self) -> StoreError | None:
        """Return why appends fail at this moment, or None."""
        try:
            self._environment.require_usable()
        except StoreClosedError as error:
            return error
        return self._writer.failure()

    def stats(self) -> StoreStats:
        """Return totals of the last commit, disk usage and counts of recoveries."""
        self._environment.require_usable()
        counters = self._environment.snapshot.counters
        return StoreStats(
            outputs=counters.outputs,
            payloads=counters.payloads,
            tokens=counters.tokens,
            bytes_used=self._environment.disk_bytes(),
            bytes_limit=self._limit,
            last_lsn=counters.last_lsn,
            expiry_grace_seconds=self._clock.grace_seconds,
            reopened=self._writer.reopened,
            defects=self._writer.defects,
        )

    def check(self) -> None:
        """Verify every page, then every record; StoreCorruptError. Writes wait for the first part."""
        view, finish = self._writer.call_between_transactions(self._verified_view)
        try:
            check_view(view)
        finally:
            finish()

    def close(self) -> None:
        """Finish queued writes, close the environment and release the lock. Idempotent."""
        if self._environment.pid == os.getpid():
            # a file that was only read is left unchanged
            if self._environment.snapshot.counters.txn != self._opened_txn:
                self._store_clock(0.0)
            self._writer.close()
        self._finalizer.detach()

    def _verified_view(self) -> tuple[ReadView, Callable[[], None]]:
        """Verify the pages of the last commit without concurrent writes; return its view and its end."""
        environment = self._environment
        datafile.require_whole(environment.path, datafile.inspect(environment.path))
        datafile.require_own_commits(environment.path)
        datafile.verify_pages(environment.path)
        txn, finish = environment.begin_long_read()
        return ReadView(txn, environment.dbs, environment.snapshot), finish

    def _store_clock(self, seconds: float) -> None:
        """Write the clock record unless that was done within ``seconds``. Commits write it, too."""
        now = self._clock.now()
        if abs(now - self._clock_stored_at) < seconds:
            return
        self._clock_stored_at = now
        try:
            self._writer.call(Operation(lambda view: view.put_clock(self._clock.reading()), frees=True))
        except StoreClosedError:
            return
        except StoreError as error:  # the next open sees a longer gap, and grants its grace period
            log.warning("clock record not written", folder=self._environment.path, error=str(error))


def _reserve(limit: int) -> int:
    """Return the bytes that only deletions may use."""
    share = limit // 32
    return round_up_map_size(min(max(share, 256 << 10), 4 << 20))


def _shut_down(pid: int, writer: Writer) -> None:
    """Close a store that its owner did not close: at interpreter exit, or when it is collected."""
    if pid != os.getpid():
        return
    if writer.is_current_thread():  # collected in a callback: the thread cannot wait for itself
        writer.request_close()
    else:
        writer.close()
