"""Write transactions of one file: begin, apply, commit; growth of its map; and what to do when it fails.

A failure that is no lack of room leaves the file *broken*: it is opened again (``Environment.reopen``), and
works again when a commit has succeeded. In between it is tried again, ever more rarely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import lmdb
import structlog

from suffixsvc.clock import StoreClock
from suffixsvc.errors import StoreCorruptError, StoreError
from suffixsvc.store.environment import Environment, full_or_store_error, is_full
from suffixsvc.store.folder import FULL_ERRNOS, disk_error
from suffixsvc.store.operations import Operation
from suffixsvc.store.snapshot import Snapshot
from suffixsvc.store.tables import WriteView
from suffixsvc.types import StoredOutput

__all__ = ["FIRST_PAUSE_SECONDS", "Committer", "Retry"]

log = structlog.get_logger(__name__)

#: how soon a store that failed is tried again by itself, and how seldom after many failures
FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 30.0
#: the map doubles up to this step
_MAX_GROWTH_BYTES: Final = 1 << 30
#: where so much does not fit any more, appends count as failing
_PROBE_BYTES: Final = 16 << 10
_PROBE_KEY: Final = b"\0probe"


class Retry(Exception):  # a signal to the writer, never seen outside
    """The transaction was aborted because an operation failed half way; run the others again."""


class _Pause:
    """When to try again what failed."""

    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE_SECONDS
        self.until = 0.0

    def begin(self) -> None:
        """It failed once more."""
        self.until = time.monotonic() + self._seconds
        self._seconds = min(2 * self._seconds, _LONGEST_PAUSE_SECONDS)

    def reset(self) -> None:
        """It works, or there is reason to try at once."""
        self._seconds, self.until = FIRST_PAUSE_SECONDS, 0.0

    def over(self) -> bool:
        return time.monotonic() >= self.until


class Committer:
    """Of one environment. Everything here runs on the writer thread; others may read the attributes.

    Args:
        environment: whose write transactions these are.
        append_cap: bytes the map may grow to for appends.
        on_deleted: called with the environment's commit lock held, before a commit that deletes rows.
        clock: its reading is kept with every commit.
        hook: called at named points; tests kill the process there.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        append_cap: int,
        on_deleted: Callable[[WriteView], None],
        clock: StoreClock,
        hook: Callable[[str], None],
    ) -> None:
        self._environment = environment
        self.append_cap = append_cap
        self._on_deleted = on_deleted
        self._clock = clock
        self.hook = hook
        #: why nothing can be written: the file has to be opened again
        self.broken: StoreError | None = None
        self.pause = _Pause()
        #: times that the file was opened again
        self.times_reopened = 0

    def note_broken(self, error: lmdb.Error) -> StoreError:
        """Nothing can be written until the file was opened again."""
        self.broken = full_or_store_error(error, "committing")
        log.error("store failed", folder=self._environment.path, error=str(error))
        return self.broken

    def usable(self) -> bool:
        """Whether a transaction can begin; a store that failed is tried again where it is time to."""
        return self.broken is None or (self.pause.over() and self.recover())

    def recover(self) -> bool:
        """Open the file again, and prove that it can be written."""
        if not self.reopen():
            return False
        try:
            self.transact([Operation(WriteView.touch)], {})
        except (StoreError, lmdb.Error) as e:
            no_room = isinstance(e, lmdb.Error) and is_full(e, self._environment.path)
            if self._environment.unsettled or not no_room:
                log.warning("store cannot write yet", folder=self._environment.path, error=str(e))
                # LMDB begins no transaction after a commit that failed, also none that reads
                if not self._environment.unsettled or self.reopen():
                    self.pause.begin()
                return False
        self.works()
        return True

    def reopen(self) -> bool:
        """Take back what failed and open the file again; nothing is proved by it yet."""
        try:
            self._environment.reopen()
        except (StoreError, OSError, lmdb.Error) as e:
            self.pause.begin()
            if isinstance(e, StoreCorruptError):
                self.broken = e
            log.warning("store not opened again yet", folder=self._environment.path, error=str(e))
            return False
        self.times_reopened += 1
        return True

    def works(self) -> None:
        """A commit succeeded."""
        self.broken = None
        self.pause.reset()
        log.info("store opened again", folder=self._environment.path)

    def transact(
        self, batch: list[Operation[Any]], failed: dict[Operation[Any], BaseException]
    ) -> tuple[dict[Operation[Any], Any], list[StoredOutput]]:
        """The results, and the rows that were deleted."""
        environment = self._environment
        results: dict[Operation[Any], Any] = {}
        txn = environment.begin_write()
        try:
            view = WriteView(txn, environment.dbs, environment.snapshot)
            self.hook("begun")
            for operation in batch:
                before = view.writes
                try:
                    results[operation] = operation.apply(view)
                except lmdb.Error:
                    raise
                except Exception as e:  # whatever it is, it belongs to this caller
                    failed[operation] = e
                    if view.writes != before:
                        raise Retry from e
            if view.writes:
                view.keep_clock(self._clock.reading())
            view.finish()
            self.hook("written")
            with environment.commit_lock:
                self._on_deleted(view)
                environment.commit(txn)
                environment.snapshot = Snapshot(view.names, view.counters, view.manifests, view.node_id)
        except BaseException:
            txn.abort()
            raise
        return results, [*view.deleted, *view.taken_back]

    def grow(self, cap: int) -> bool:
        """Double the map, or what the disk and the cap allow of it; False if that is nothing."""
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
                step //= 2
            else:
                return True
        return False

    def resize(self, size: int) -> None:
        """OSError where the file cannot be made so long."""
        try:
            self._environment.resize(size)
        except lmdb.Error as e:
            raise self.note_broken(e) from e

    def has_room(self) -> bool:
        """Whether a small append would fit; nothing is written. False as well where the store fails."""
        while True:
            try:
                txn = self._environment.begin_write()
                try:
                    txn.put(_PROBE_KEY, bytes(_PROBE_BYTES), db=self._environment.dbs.state)
                finally:
                    txn.abort()
            except lmdb.Error as e:
                if not is_full(e, self._environment.path):
                    self.note_broken(e)
                    return False
                if not (isinstance(e, lmdb.MapFullError) and self.grow(self.append_cap)):
                    return False
            else:
                return True
