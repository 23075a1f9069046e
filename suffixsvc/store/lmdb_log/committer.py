"""Write transactions of one data file: begin, apply, commit; growth of the map; recovery after an I/O error.

An I/O error other than a full disk marks the file *broken*: it is reopened (``Environment.reopen``), and
works again once a commit has succeeded. Until then it is retried with exponential backoff.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any, Final

import lmdb
import structlog

from suffixsvc.clock import StoreClock
from suffixsvc.errors import StoreCorruptError, StoreError, StoreFullError
from suffixsvc.store.files import scrub
from suffixsvc.store.files.folder import FULL_ERRNOS, disk_error
from suffixsvc.store.lmdb_log.environment import Environment
from suffixsvc.store.lmdb_log.lmdb_errors import is_out_of_space, store_error_of
from suffixsvc.store.transactions.operations import Operation
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import StoredOutput

log = structlog.get_logger(__name__)

#: delay before the first retry of a failed store, and the longest one after repeated failures
INITIAL_BACKOFF_SECONDS: Final = 0.05
_MAX_BACKOFF_SECONDS: Final = 30.0
#: the map doubles up to this step
_MAX_GROWTH_BYTES: Final = 1 << 30
#: the store counts as full when an append of this size does not fit: an output of some ten thousand tokens
_PROBE_BYTES: Final = 64 << 10
_PROBE_KEY: Final = b"\0probe"


class Retry(Exception):  # a signal to the store's thread
    """The transaction was aborted because an operation failed after a write; run the others again."""


class _Backoff:
    """Exponential backoff of retries."""

    def __init__(self) -> None:
        self._seconds = INITIAL_BACKOFF_SECONDS
        self._until = 0.0

    def begin(self) -> None:
        """Start the next, doubled, delay after a failure."""
        self._until = time.monotonic() + self._seconds
        self._seconds = min(2 * self._seconds, _MAX_BACKOFF_SECONDS)

    def reset(self) -> None:
        """End the delay after a success."""
        self._seconds, self._until = INITIAL_BACKOFF_SECONDS, 0.0

    def remaining(self) -> float:
        """Return the seconds until the next retry; not positive once the delay has elapsed."""
        return self._until - time.monotonic()


class Committer:
    """Write transactions of one environment. For the store's thread; other threads may read the attributes.

    Args:
        environment: the open data folder.
        append_cap: bytes that the map may grow to for appends.
        on_deleted: called with the environment's commit lock held, before a commit that deletes rows.
        clock: its reading is stored with every commit.
        lsns_from_clock: LSNs are store times in microseconds, as far as they rise.
    """

    def __init__(
        self,
        environment: Environment,
        append_cap: int,
        on_deleted: Callable[[WriteView], None],
        clock: StoreClock,
        *,
        lsns_from_clock: bool = False,
    ) -> None:
        self._environment = environment
        self.append_cap = append_cap
        self._on_deleted = on_deleted
        self._clock = clock
        self._lsns_from_clock = lsns_from_clock
        #: the error that broke the file; None while it can be written
        self.broken: StoreError | None = None
        self.backoff = _Backoff()
        #: number of times that the file was reopened
        self.times_reopened = 0
        #: why the file could not be extended at the last attempt; None: because of the cap
        self._no_growth: OSError | None = None

    def mark_broken(self, error: lmdb.Error) -> StoreError:
        """Record that nothing can be written until the file is reopened; return the typed error."""
        self.broken = store_error_of(error, "committing")
        log.error("store failed", folder=self._environment.path, error=str(error))
        return self.broken

    def usable(self) -> bool:
        """Whether a transaction can begin; recovers a broken file if the backoff has elapsed."""
        return self.broken is None or (self.backoff.remaining() <= 0.0 and self.recover())

    def recover(self) -> bool:
        """Reopen the file and commit an empty transaction; whether both succeeded."""
        if not self.reopen():
            return False
        try:
            self.transact([Operation(WriteView.touch)], {})
        except (StoreError, lmdb.Error) as e:
            no_room = isinstance(e, lmdb.Error) and is_out_of_space(e, self._environment.path)
            if self._environment.failed_commit or not no_room:
                log.warning("store cannot write yet", folder=self._environment.path, error=str(e))
                # LMDB begins no transaction after a failed commit, read transactions included
                if not self._environment.failed_commit or self.reopen():
                    self.backoff.begin()
                return False
        self.mark_working()
        return True

    def reopen(self) -> bool:
        """Roll back the failed commit and reopen the file; whether that succeeded. Writes are untested."""
        try:
            self._environment.reopen()
        except (StoreError, OSError, lmdb.Error) as e:
            self.backoff.begin()
            if isinstance(e, StoreCorruptError):
                self.broken = e
            log.warning("store not reopened yet", folder=self._environment.path, error=str(e))
            return False
        self.times_reopened += 1
        return True

    def scrub(self) -> None:
        """Overwrite what the file holds of deleted rows, all of which earlier commits than the last deleted.

        Raises:
            StoreError: a part may be overwritten; the log is unchanged.
        """
        if self.broken is not None:
            raise self.broken
        try:
            self._environment.renew()
        except StoreError as e:  # there is no environment: recovery opens one
            self.broken = e
            self.backoff.begin()
            raise
        path = self._environment.path
        try:
            written = scrub.scrub(path, self._environment.sync_point)
        except OSError as e:
            raise disk_error(e, path, "overwriting deleted rows in") from e
        log.info("deleted rows overwritten", folder=path, written_bytes=written)

    def mark_working(self) -> None:
        """Record that a commit succeeded."""
        self.broken = None
        self.backoff.reset()
        log.info("store reopened", folder=self._environment.path)

    def transact(
        self, batch: list[Operation[Any]], failed: dict[Operation[Any], BaseException]
    ) -> tuple[dict[Operation[Any], Any], list[StoredOutput]]:
        """Apply and commit a batch.

        Args:
            batch: operations to apply.
            failed: receives the operations that raised, with their errors.

        Returns:
            (result of each other operation, the rows that were deleted).

        Raises:
            Retry: an operation failed after a write; nothing was committed.
            lmdb.Error: nothing was committed, or it is unknown (``Environment.failed_commit``).
        """
        environment = self._environment
        results: dict[Operation[Any], Any] = {}
        txn = environment.begin_write()
        try:
            lowest_lsn = self._clock.now_us() if self._lsns_from_clock else 1
            view = WriteView(environment.tables(txn), environment.snapshot, lowest_lsn)
            environment.sync_point("begun")
            for operation in batch:
                before = view.writes
                try:
                    results[operation] = operation.apply(view)
                except lmdb.Error:
                    raise
                except Exception as e:  # reported to the caller of this operation only
                    failed[operation] = e
                    if view.writes != before:
                        raise Retry from e
            view.finish(self._clock.reading())
            environment.sync_point("written")
            with environment.commit_lock:
                self._on_deleted(view)
                environment.commit(txn)
                environment.snapshot = view.snapshot()
        except BaseException:
            txn.abort()
            raise
        return results, [*view.deleted, *view.undone]

    def full_error(self, error: lmdb.Error) -> StoreFullError:
        """The typed error for an LMDB error of a transaction that does not fit: the disk's or the limit's."""
        cause = self._no_growth if isinstance(error, lmdb.MapFullError) else OSError(error.code, str(error))
        if cause is not None:
            code = cause.errno if cause.errno in FULL_ERRNOS else errno.ENOSPC  # as of a short write
            # every caller may read it: no path
            full = disk_error(OSError(code, os.strerror(code)), "", "extending the data file")
            if isinstance(full, StoreFullError):
                return full
        return StoreFullError(
            "the store is full",
            expected="at most Limits.max_store_bytes",
            got=f"a data file of {self._environment.map_bytes} bytes",
            remedy="Forget outputs, or raise Limits.max_store_bytes (serve --max-store-gib); nothing was "
            "stored.",
        )

    def grow(self, cap: int) -> bool:
        """Double the map, as far as disk and cap allow; False if it cannot grow."""
        self._no_growth = None
        now = self._environment.map_bytes
        step = min(now, _MAX_GROWTH_BYTES, cap - now)
        smallest = 64 << 10
        while step >= smallest:
            step -= step % smallest
            try:
                self.resize(now + step)
            except OSError as e:
                if e.errno not in FULL_ERRNOS:
                    raise disk_error(e, self._environment.path, "extending") from e
                self._no_growth = e
                step //= 2
            else:
                self._no_growth = None
                return True
        return False

    def resize(self, size: int) -> None:
        """Set the size of the map; OSError if the file cannot be extended."""
        try:
            self._environment.resize(size)
        except lmdb.Error as e:
            raise self.mark_broken(e) from e

    def has_room(self) -> bool:
        """Whether a small append would fit, tried in an aborted transaction; False if that fails."""
        while True:
            try:
                txn = self._environment.begin_write()
                try:
                    self._environment.tables(txn).put("state", _PROBE_KEY, bytes(_PROBE_BYTES))
                finally:
                    txn.abort()
            except lmdb.Error as e:
                if not is_out_of_space(e, self._environment.path):
                    self.mark_broken(e)
                    return False
                if not (isinstance(e, lmdb.MapFullError) and self.grow(self.append_cap)):
                    return False
            else:
                return True
