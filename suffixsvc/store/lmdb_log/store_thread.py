"""The thread of an LMDB store: the only owner of LMDB's write transactions, with group commit.

callers:  submit(operation) ──> queue of small operations, or of bulk loads
                                        │ served alternately; each takes a batch, up to a size
thread:   begin ── apply, apply, ... ── commit (synced) ── resolve the futures ── next
             │         │                  │
             │         │                  ├── no room in the map: abort, grow it, redo the batch;
             │         │                  │   it cannot grow: redo one by one, fail those that do not fit
             │         │                  └── I/O error: roll the commit back, reopen the file, redo the batch
             │         │                      once; else fail it, and all others until a commit succeeds
             │         └── refused before its first write: that operation fails alone
             │             failed later: abort, redo the batch without it
             └── an LMDB transaction must begin, run and commit on one thread

After a slice of an operation of several transactions is committed, the operation returns to the front of its
queue. If a slice fails, the rows of earlier slices are deleted (undone).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import lmdb
import structlog

from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError
from suffixsvc.store.lmdb_log.committer import INITIAL_BACKOFF_SECONDS, Committer, Retry
from suffixsvc.store.lmdb_log.environment import Environment
from suffixsvc.store.lmdb_log.lmdb_errors import is_out_of_space
from suffixsvc.store.lmdb_log.operation_queue import OperationQueue
from suffixsvc.store.transactions.operations import Operation, Undo, call_listener
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, StoredOutput

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: argument of an operation between transactions, which must not use it
_NO_VIEW: Final[Any] = None


class _OutOfSpace(Exception):  # a signal inside this module
    """The batch does not fit and the map cannot grow."""

    def __init__(self, error: StoreFullError) -> None:
        super().__init__(error)
        self.error = error


class StoreThread:
    """Queue and thread. The thread ends with :meth:`close` and no sooner, whatever exception is raised in it.

    Args:
        environment: its write transactions belong to this thread.
        committer: of that environment.
        free_cap: bytes that the map may grow to for operations that free space.
    """

    def __init__(self, environment: Environment, committer: Committer, free_cap: int) -> None:
        self._environment = environment
        self._committer = committer
        self._free_cap = free_cap
        self._queue = OperationQueue()
        #: receives the rows that a commit deleted, after it
        self.listener: Callable[[list[StoredOutput]], object] | None = None
        #: receives the last LSN after a commit
        self.commit_listener: Callable[[OutputId], object] | None = None
        #: error of the last append that did not fit, until a small append fits again
        self._full: StoreFullError | None = None
        #: the last transactions freed pages that LMDB does not reuse yet
        self._freed = False
        #: undos that have not succeeded yet
        self._undos: deque[Undo] = deque()
        #: number of unexpected exceptions
        self.defects = 0
        self._close_error: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="suffixsvc-store-writer", daemon=True)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Queue an operation. Errors, StoreClosedError included, arrive through the future."""
        try:
            self._environment.require_usable()
        except StoreClosedError as e:
            operation.fail(e)
            return operation.future
        if not self._queue.put(operation):
            operation.fail(StoreClosedError("the store is closed", remedy="Open it again."))
        return operation.future

    def call_between_transactions(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the store's thread between write transactions, and wait."""
        self.require_other_thread()
        return self.submit(Operation(lambda view: work(), between_transactions=True)).result()

    def scrub(self) -> None:
        """Overwrite what the file holds of rows that are deleted, between write transactions, and wait."""
        # LMDB keeps the pages of the last two transactions
        self.submit(Operation(WriteView.touch, frees=True)).result()
        self.call_between_transactions(self._committer.scrub)

    def undo_append(self, undo: Undo) -> None:
        """Delete the rows of an interrupted append, and wait.

        If that fails it is retried automatically, before anything else is written.
        """
        self.call_between_transactions(lambda: self._add_undo(undo))

    @property
    def queued(self) -> int:
        """Number of operations that wait."""
        return len(self._queue)

    @property
    def reopened(self) -> int:
        """Number of times that the file was reopened."""
        return self._committer.times_reopened

    def failure(self) -> StoreError | None:
        """Return why appends fail at this moment, or None."""
        return self._committer.broken or self._full or (_undo_pending_error() if self._undos else None)

    def close(self) -> None:
        """Finish everything queued, close the environment, end the thread. Idempotent."""
        self.require_other_thread()
        self.request_close()
        self._thread.join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def request_close(self) -> None:
        """Close without waiting."""
        self._queue.close()

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the store's thread."""
        return threading.current_thread() is self._thread

    def require_other_thread(self) -> None:
        """Raise StoreError on the store's thread, which cannot wait for itself."""
        if self.is_current_thread():
            raise StoreError(
                "the store must be called from another thread than that of its futures' callbacks",
                remedy="Pass the work to a thread of your own.",
            )

    # --- the store's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while self._serve_safely():
            pass
        try:
            if self._committer.broken is not None and not self._committer.recover():
                error = str(self._committer.broken)
                log.error("store closed with an error", folder=self._environment.path, error=error)
            self._environment.close()
        except StoreError as e:
            self._close_error = e
        except BaseException as e:  # raised by close()
            self._close_error = StoreError("the store did not close properly", got=repr(e))

    def _serve_safely(self) -> bool:
        try:
            return self._serve()
        except BaseException:
            self.defects += 1
            log.exception("unexpected error in the store's thread", folder=self._environment.path)
            time.sleep(INITIAL_BACKOFF_SECONDS)  # an error that repeats must not occupy a core
            return True

    def _serve(self) -> bool:
        """Serve one batch; False once closed and drained.

        A call per batch: an idle thread must not hold references to the last batch, because callbacks of its
        futures may hold the store itself.
        """
        taken = self._queue.take_batch(self._retry_seconds)
        if taken is None:
            return False
        between = bool(taken) and taken[0].between_transactions
        try:
            batch = [operation for operation in taken if operation.start()]
            if batch and between:
                batch[0].future.set_result(batch[0].apply(_NO_VIEW))
            elif batch:
                self._commit(batch)
        except StoreError as e:
            self._fail(taken, e)
        except BaseException as e:  # every future must be resolved
            self._fail(taken, e)
            if not between:
                raise
        # errors from here on do not belong to an operation
        if not taken:
            self._run_maintenance()
        elif not between:
            self._probe_room()
        return True

    def _retry_seconds(self) -> float | None:
        """Return the seconds until a failed store is retried; None if it has not failed."""
        if self._committer.broken or self._full or self._undos:
            return self._committer.backoff.remaining()
        return None

    def _commit(self, batch: list[Operation[Any]]) -> None:
        if not self._committer.usable():
            self._fail(batch, self._committer.broken)
            return
        if not self._run_undos() and not all(operation.frees for operation in batch):
            self._fail(batch, _undo_pending_error())
            return
        try:
            self._attempt_within(batch, self._committer.append_cap)
        except _OutOfSpace as e:
            if self._release_freed():
                self._commit(batch)
                return
            if len(batch) == 1:
                if not batch[0].frees:
                    self._note_full(e.error)
                self._fail(batch, e.error)
                return
            for operation in batch:
                self._commit([operation])

    def _attempt_within(self, batch: list[Operation[Any]], cap: int) -> None:
        """Commit the batch; a single operation that frees space may use the reserve above ``cap``."""
        reserve = len(batch) == 1 and batch[0].frees
        try:
            self._attempt(batch, self._free_cap if reserve else cap)
        finally:
            if reserve and self._environment.map_bytes > cap:
                self._committer.resize(cap)

    def _attempt(self, batch: list[Operation[Any]], cap: int) -> None:
        """Commit the batch, growing the map up to ``cap`` as needed; _OutOfSpace if nothing was stored."""
        failed: dict[Operation[Any], BaseException] = {}
        reopened = False
        while True:
            try:
                results, deleted = self._committer.transact([op for op in batch if op not in failed], failed)
                break
            except Retry:
                continue
            except lmdb.Error as e:
                no_room = is_out_of_space(e, self._environment.path)
                if self._environment.failed_commit or not no_room:
                    broken = self._committer.mark_broken(e)
                    if not self._committer.reopen() or (reopened and not no_room):
                        self._committer.backoff.begin()
                        raise broken from e
                    reopened = True
                if no_room and not (isinstance(e, lmdb.MapFullError) and self._committer.grow(cap)):
                    raise _OutOfSpace(self._committer.full_error(e)) from e
        if self._committer.broken is not None:
            self._committer.mark_working()
        self._freed = self._freed or batch[0].frees
        self._environment.sync_point("committed")
        for operation, result in results.items():
            call_listener(operation.on_committed, result)
        if deleted:  # after the appends: an operation can delete rows that this batch appended
            call_listener(self.listener, deleted)
        call_listener(self.commit_listener, self._environment.snapshot.counters.last_lsn)
        for operation, result in results.items():
            self._finish(operation, result)
        for operation, error in failed.items():
            self._fail([operation], error)
        self._environment.sync_point("acknowledged")

    # --- completion of operations -------------------------------------------------------------------

    def _finish(self, operation: Operation[Any], result: Any) -> None:
        """Resolve a committed operation, or queue its next slice."""
        slices = operation.slices
        if slices is None:
            operation.future.set_result(result)
        elif slices.advance(result):
            operation.future.set_result(slices.ids)
        else:
            self._queue.requeue(operation)

    def _fail(self, batch: list[Operation[Any]], error: BaseException | None) -> None:
        """Fail the unresolved operations of a batch and undo their committed slices."""
        for operation in batch:
            if operation.future.done():
                continue
            try:
                undo = None if operation.slices is None else operation.slices.undo()
                if undo is not None:
                    self._add_undo(undo)
            finally:  # the future must be resolved, and the undo must not be added twice
                operation.fail(error)

    def _add_undo(self, undo: Undo) -> None:
        self._undos.append(undo)
        self._run_undos()

    def _run_undos(self) -> bool:
        """Undo interrupted appends until one fails; whether none is left.

        This comes before all other writes: an output sent again must not be matched by uuid to a row that is
        about to be deleted.
        """
        while self._undos and self._committer.broken is None:
            undo = Operation(self._undos[0].apply, frees=True)
            try:
                try:
                    self._attempt_within([undo], self._committer.append_cap)
                except _OutOfSpace:
                    if self._release_freed() or self._undos[0].shrink():
                        continue
                    raise
                rows = undo.future.result()
            except Exception as e:  # retried, whatever it is
                log.warning("undo of an interrupted append failed; it is retried", error=str(e))
                self._committer.backoff.begin()
                return False
            if self._undos[0].advance(rows):
                self._undos.popleft()
        return not self._undos

    # --- recovery -----------------------------------------------------------------------------------

    def _note_full(self, error: StoreFullError) -> None:
        """Record that the store is full, unless a small append would still fit."""
        if not self._committer.has_room():
            if self._full is None:
                log.warning("store has no room", folder=self._environment.path, error=str(error))
            self._full = error
            self._committer.backoff.begin()

    def _probe_room(self) -> None:
        """Clear the full state if a small append fits again. After each commit, and periodically."""
        if self._full is None or self._committer.broken is not None:
            return
        try:
            found = self._committer.has_room() or (self._release_freed() and self._committer.has_room())
        except (StoreError, lmdb.Error) as e:
            self._committer.backoff.begin()
            log.warning("cannot determine free space yet", folder=self._environment.path, error=str(e))
            return
        if found:
            self._full = None
            self._committer.backoff.reset()
            log.info("store has room again", folder=self._environment.path)

    def _release_freed(self) -> bool:
        """Commit an empty transaction, so that LMDB reuses the pages freed last; False if there are none."""
        if not self._freed:
            return False
        try:
            self._attempt_within([Operation(WriteView.touch, frees=True)], self._committer.append_cap)
        except _OutOfSpace:
            return False
        finally:
            self._freed = False
        return True

    def _run_maintenance(self) -> None:
        """Try to recover a failed store; run by an idle thread when the backoff has elapsed."""
        if not self._committer.usable():
            return
        self._run_undos()
        self._probe_room()
        if self._full is not None:
            self._committer.backoff.begin()


def _undo_pending_error() -> StoreError:
    return StoreError(
        "rows of an interrupted append must be undone before anything else is written",
        remedy="Nothing of this was stored. The undo is retried automatically; try again afterwards.",
    )
