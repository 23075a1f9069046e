"""The durable store: LMDB, one folder, one process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

import structlog

from suffixsvc.clock import Due, StoreClock, SystemTime, TimeSource
from suffixsvc.config import Limits, validate_uuid
from suffixsvc.errors import (
    InvalidConfigError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    SuffixError,
)
from suffixsvc.store import datafile, identity, removal
from suffixsvc.store.checker import check_view
from suffixsvc.store.clock_record import report_gap
from suffixsvc.store.environment import Environment, new_node_id, rounded_up
from suffixsvc.store.folder import prepare_folder
from suffixsvc.store.operations import Operation, Undo, append_operation
from suffixsvc.store.read_view import ReadView
from suffixsvc.store.records import SCHEMA_VERSION, decode_state, state_key
from suffixsvc.store.scans import Scans
from suffixsvc.store.tables import WriteView
from suffixsvc.store.validation import check_namespace, check_now, check_output, check_state_name
from suffixsvc.store.writer import Writer
from suffixsvc.types import (
    IncompleteOutput,
    NamespaceRecord,
    NewOutput,
    OutputId,
    OutputOutline,
    SegmentRecord,
    StoredOutput,
    StoreStats,
)

__all__ = ["MIN_LIMIT_BYTES", "LmdbStore"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: an empty store needs a few dozen pages, and forgetting needs room to work in
MIN_LIMIT_BYTES: Final = 1 << 20
_DEFAULT_MAP_BYTES: Final = 4 << 20
#: rows of one transaction when many are deleted at once
_DELETED_ROWS: Final = 256
#: tokens of one transaction that deletes what has expired; one row in any case
_DELETED_TOKENS: Final = 1 << 20
#: rows of one read transaction: an old snapshot keeps freed pages from being used again
_OUTLINE_ROWS: Final = 4096
_SEGMENTS: Final = "segments"
#: an open store that nothing is written to notes so often that it is open
_KEEP_CLOCK_SECONDS: Final = 600.0


class LmdbStore:
    """A :class:`suffixsvc.types.Store` in a folder.

    Thread-safe. Belongs to the process that opened it: after a fork the child gets StoreClosedError.
    Futures resolve on the writer thread; their callbacks must not call the store and wait.

    Args:
        path: the folder; made where it is missing.
        map_bytes_initial: the file's first size; it doubles as needed.
        limit_bytes: the file never grows beyond this; then appends raise StoreFullError. A small
            part is kept back so that forgetting always works. At least ``MIN_LIMIT_BYTES``.
        sync: False acknowledges before the data is on the disk: what was acknowledged then survives
            the end of the process, but a power cut can destroy the whole file.
        progress: called with (done, total) bytes while an existing file is verified.
        grace_seconds: how long outputs stay that are due only because the wall clock moved while the folder
            was closed (:mod:`suffixsvc.clock`).
        clock: the clocks of the machine.
        crash_hook: called at named points; tests end the process there.

    Raises:
        StoreLockedError: the folder is open already.
        StoreForeignError: there is a file that is not ours, or of another schema version.
        StoreCorruptError: there is a file that is torn or damaged.
        StoreFullError, StoreError: the folder cannot be made or written.
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
        crash_hook: Callable[[str], None] | None = None,
    ) -> None:
        for name, value, smallest in (
            ("limit_bytes", limit_bytes, MIN_LIMIT_BYTES),
            ("map_bytes_initial", map_bytes_initial, 1),
        ):
            if type(value) is not int or value < smallest:
                raise InvalidConfigError(
                    f"{name} makes no sense", expected=f"an integer >= {smallest}", got=repr(value)
                )
        folder = os.path.abspath(os.fspath(path))
        limit = limit_bytes - limit_bytes % datafile.PAGE_MULTIPLE
        append_cap = limit - _reserve(limit)
        prepare_folder(folder)
        source = SystemTime() if clock is None else clock
        self._limit = limit_bytes
        environment = Environment(
            folder,
            map_bytes_initial=min(rounded_up(max(map_bytes_initial, 256 << 10)), append_cap),
            map_bytes_cap=append_cap,
            sync=sync,
            created_us=check_now(source.wall()),
            progress=progress,
            hook=crash_hook,
        )
        self._clock = StoreClock(environment.clock_seen, grace_seconds=grace_seconds, source=source)
        self._clock_kept = self._clock.now()
        self._opened_lsn = environment.snapshot.counters.last_lsn
        self._opened_txn = environment.snapshot.counters.txn
        with environment.read() as (txn, snapshot):
            spared = ReadView(txn, environment.dbs, snapshot).any_expired_in_gap(self._clock.due())
        report_gap(self._clock, environment.path, spared)
        scans = Scans(environment)
        writer = Writer(
            environment,
            append_cap=append_cap,
            free_cap=limit,
            on_deleted=scans.hand_over,
            clock=self._clock,
            hook=crash_hook,
        )
        self._environment, self._scans, self._writer = environment, scans, writer
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

    def _upgrade(self) -> None:
        """A folder of an older schema becomes one of the current, which earlier releases refuse: they would
        delete rows and leave their tombstones, or entries of their uuids."""
        environment = self._environment
        try:
            self._writer.call(
                Operation(
                    lambda view: view.upgrade(environment.add_databases(view.txn), new_node_id()), frees=True
                )
            )
        except StoreFullError as error:  # it is served as it is
            log.warning("no room for the new schema", folder=environment.path, error=str(error))
            return
        environment.reload()
        log.info("data folder upgraded", folder=environment.path, schema=environment.schema)

    def _undo_unfinished(self) -> None:
        """What a crash left of appends that took several transactions. Where that cannot be deleted yet, the
        folder opens all the same: to make room in it, it has to be open."""
        with self._environment.read() as (txn, snapshot):
            found = ReadView(txn, self._environment.dbs, snapshot).unfinished()
        for ranges in found:
            left = [lsn for first, last in ranges for lsn in range(first, last + 1)]
            log.info("unfinished append found", folder=self._environment.path, outputs=len(left))
            self._writer.take_back(Undo(left))

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        check_namespace(record)
        return self._writer.call(Operation(lambda view: view.add_namespace(record)))

    def namespaces(self) -> list[NamespaceRecord]:
        self._environment.require_usable()
        rows = self._environment.snapshot.names.by_path.values()
        return sorted((NamespaceRecord(r.path, r.tokenizer) for r in rows), key=lambda r: r.path)

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        number = self._writer.call(Operation(lambda view: removal.begin(view, path), frees=True))
        return self._delete_rest(number, between)

    def _finish_deletions(self) -> None:
        """What a crash, or a lack of room, left of deleted namespaces."""
        for row in list(self._environment.snapshot.names.deleting.values()):
            try:
                outputs = self._delete_rest(row.namespace_id)
            except StoreFullError as error:  # nothing sees what is left of it
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
        raise AssertionError("a deletion has an end")

    def _delete_part(self, number: int, rows: int) -> removal.Part:
        return self._writer.call(Operation(lambda view: removal.part(view, number, rows), frees=True))

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        decided: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        operation: Operation[list[OutputId]]
        try:
            for record in create:
                check_namespace(record)
            checked = [check_output(output) for output in outputs]
            written_us = self._clock.now_us()
        except SuffixError as e:
            operation = Operation(lambda view: [], decided=decided)
            operation.fail(e)
            return operation.future
        return self._writer.submit(append_operation(checked, written_us, create, decided))

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        self._writer.listener = listener

    def barrier(self) -> None:
        self._writer.call_idle(lambda: None)

    def forget(self, namespace: str, output_id: OutputId) -> StoredOutput:
        return self._writer.call(Operation(lambda view: view.delete(output_id, namespace), frees=True))

    def forget_many(self, namespace: str, output_ids: Sequence[OutputId]) -> list[StoredOutput]:
        self._environment.snapshot.names.require(namespace)
        ids = sorted(set(output_ids))
        gone: list[StoredOutput] = []
        done = 0

        def delete(rows: int) -> int:
            part = ids[done : done + rows]
            gone.extend(self._delete(lambda view: view.delete_many(namespace, part)))
            return len(part)

        for rows in self._in_slices(delete):
            done += rows
            if done == len(ids):
                break
        return gone

    @property
    def clock(self) -> StoreClock:
        return self._clock

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        due = self._clock.due() if now is None else Due.at(check_now(now))
        self._keep_clock(_KEEP_CLOCK_SECONDS)

        def delete(rows: int) -> list[StoredOutput]:
            return self._delete(
                lambda view: view.delete_expired(due, self._opened_lsn, rows, _DELETED_TOKENS)
            )

        gone = next(self._in_slices(delete))
        return sorted(gone, key=lambda stored: stored.output_id)

    def _in_slices(self, work: Callable[[int], T]) -> Iterator[T]:
        """Call it again and again with how many rows a transaction may take: fewer where there is no room."""
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

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        with self._environment.read() as (txn, snapshot):
            number = snapshot.names.require(namespace).namespace_id
            view = ReadView(txn, self._environment.dbs, snapshot)
            return view.lsns(number, max(first, 1) - 1, last, 2**64 if limit is None else limit)

    @property
    def node_id(self) -> int:
        return self._environment.snapshot.node_id

    def find(self, namespace: str, uuid: bytes) -> OutputId | None:
        validate_uuid(uuid)
        with self._environment.read() as (txn, snapshot):
            view = ReadView(txn, self._environment.dbs, snapshot)
            record = identity.find(view, snapshot.names.require(namespace).namespace_id, uuid)
            return None if record is None else record.lsn

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        with self._environment.read() as (txn, snapshot):
            return identity.incomplete(ReadView(txn, self._environment.dbs, snapshot), session_id)

    @property
    def segment_folder(self) -> Path | None:
        return Path(self._environment.path).with_name(_SEGMENTS)

    def segments(self, namespace: str) -> list[SegmentRecord]:
        self._environment.require_usable()
        snapshot = self._environment.snapshot
        return list(snapshot.manifests.get(snapshot.names.require(namespace).namespace_id, ()))

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        with self._environment.read() as (txn, snapshot):
            number = snapshot.names.require(namespace).namespace_id
            return ReadView(txn, self._environment.dbs, snapshot).tombstones(number)

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        return self._writer.call(
            Operation(lambda view: view.add_segment(namespace, name, file_bytes, outputs), 1024)
        )

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        return self._writer.call(
            Operation(
                lambda view: view.replace_segments(namespace, names, name, file_bytes, left_out),
                1024,
                frees=True,
            )
        )

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        self._writer.call(Operation(lambda view: view.drop_segments(namespace, names), frees=True))

    def get(self, output_id: OutputId) -> StoredOutput:
        with self._environment.read() as (txn, snapshot):
            return ReadView(txn, self._environment.dbs, snapshot).output(output_id)

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        self._environment.require_usable()
        names = self._environment.snapshot.names
        number = None if namespace is None else names.require(namespace).namespace_id
        return self._scans.run(number, from_lsn)

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        after = 0
        while True:
            with self._environment.read() as (txn, snapshot):
                view = ReadView(txn, self._environment.dbs, snapshot)
                number = snapshot.names.require(namespace).namespace_id
                part = view.outline(number, after, _OUTLINE_ROWS)
            yield from part
            if len(part) < _OUTLINE_ROWS:
                return
            after = part[-1].output_id

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        check_state_name(name)
        blob = bytes(value)
        self._writer.call(Operation(lambda view: view.put_state(namespace, name, blob), len(blob)))

    def get_state(self, namespace: str, name: str) -> bytes | None:
        check_state_name(name)
        with self._environment.read() as (txn, snapshot):
            number = snapshot.names.require(namespace).namespace_id
            key = state_key(number, name)
            raw = txn.get(key, db=self._environment.dbs.state)
            return None if raw is None else decode_state(raw, key)

    def failure(self) -> StoreError | None:
        try:
            self._environment.require_usable()
        except StoreClosedError as error:
            return error
        return self._writer.failure()

    def stats(self) -> StoreStats:
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
        """Walk every page, then every record. Writes wait for the first part."""
        view, finish = self._writer.call_idle(self._verified_view)
        try:
            check_view(view)
        finally:
            finish()

    def close(self) -> None:
        if self._environment.pid == os.getpid():
            # a file that was only read stays as it is
            if self._environment.snapshot.counters.txn != self._opened_txn:
                self._keep_clock(0.0)
            self._writer.close()
        self._finalizer.detach()

    def _verified_view(self) -> tuple[ReadView, Callable[[], None]]:
        """The last commit, its pages walked while nobody writes, and how to let go of it."""
        environment = self._environment
        datafile.require_whole(environment.path, datafile.inspect(environment.path))
        datafile.require_own_commits(environment.path)
        datafile.verify_pages(environment.path)
        txn, finish = environment.begin_long_read()
        return ReadView(txn, environment.dbs, environment.snapshot), finish

    def _keep_clock(self, seconds: float) -> None:
        """Note that the store is open, unless that was done in so many seconds. Commits note it too."""
        now = self._clock.now()
        if abs(now - self._clock_kept) < seconds:
            return
        self._clock_kept = now
        try:
            self._writer.call(Operation(lambda view: view.keep_clock(self._clock.reading()), frees=True))
        except StoreClosedError:
            return
        except StoreError as error:  # the next opening sees a longer gap, and gives what is due its grace
            log.warning("the time is not kept", folder=self._environment.path, error=str(error))


def _reserve(limit: int) -> int:
    """Bytes that only operations which make room may use."""
    share = limit // 32
    return rounded_up(min(max(share, 256 << 10), 4 << 20))


def _shut_down(pid: int, writer: Writer) -> None:
    """For a store that nobody closed: at interpreter exit, or when it is collected."""
    if pid != os.getpid():
        return
    if writer.is_current_thread():  # collected in a callback: the thread cannot wait for itself
        writer.finish_soon()
    else:
        writer.close()
