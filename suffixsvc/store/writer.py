"""The one thread that owns LMDB's write transactions, with group commit.

callers:  submit(operation) ──> queue ──┐
                                        │ everything that waits, up to a size
writer:   begin ── apply, apply, ... ── commit (synced) ── resolve the futures ── next
             │         │                  │
             │         │                  └── no room: abort, grow the map, redo the batch;
             │         │                      nothing to grow: redo one by one, refuse what does not fit
             │         └── refused before its first write: that operation fails alone
             │             failed later: abort, redo the batch without it
             └── an LMDB transaction must begin, run and commit on one thread
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import lmdb

from suffixsvc.clock import StoreClock
from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError
from suffixsvc.store.environment import Environment, full_or_store_error, is_full
from suffixsvc.store.folder import FULL_ERRNOS
from suffixsvc.store.snapshot import Snapshot
from suffixsvc.store.tables import WriteView

__all__ = ["Operation", "Writer"]

T = TypeVar("T")

#: what one transaction takes at most, so that its dirty pages stay far below LMDB's own limit
_BATCH_BYTES: Final = 32 << 20
#: the map doubles up to this step
_MAX_GROWTH_BYTES: Final = 1 << 30


@dataclass(slots=True, eq=False)
class Operation(Generic[T]):
    """Something to do in a write transaction.

    Attributes:
        apply: runs on the writer thread, possibly more than once (after an abort); the last result
            counts. It must leave nothing behind but what it does through the view.
        size: bytes it writes, roughly.
        frees: it makes room, so it may use the reserve that appends may not.
        idle: run it between transactions, without one.
    """

    apply: Callable[[WriteView], T]
    size: int = 0
    frees: bool = False
    idle: bool = False
    future: Future[T] = field(default_factory=Future)


#: what an idle operation gets; it must not look at it
_NO_VIEW: Final[Any] = None


class _NoRoom(Exception):  # a signal inside this module, never seen outside
    """The batch does not fit and the map cannot grow."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Writer:
    """Queue and thread.

    Args:
        environment: whose write transactions this thread owns from now on.
        append_cap: bytes the map may grow to for appends.
        free_cap: bytes it may grow to for operations that make room.
        on_deleted: called with the environment's commit lock held, before a commit that deletes rows.
        clock: its reading is kept with every commit.
        hook: called at named points; tests kill the process there.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        append_cap: int,
        free_cap: int,
        on_deleted: Callable[[WriteView], None],
        clock: StoreClock,
        hook: Callable[[str], None] | None,
    ) -> None:
        self._environment = environment
        self._append_cap = append_cap
        self._free_cap = free_cap
        self._on_deleted = on_deleted
        self._clock = clock
        self._hook = hook or (lambda point: None)
        self._queue: deque[Operation[Any]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._broken: StoreError | None = None
        self._close_error: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="suffixsvc-store-writer", daemon=True)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Queue it. Errors, StoreClosedError included, arrive through the future."""
        try:
            self._environment.require_usable()
        except StoreClosedError as e:
            operation.future.set_exception(e)
            return operation.future
        with self._wake:
            if not self._closing:
                self._queue.append(operation)
                self._wake.notify()
                return operation.future
        operation.future.set_exception(StoreClosedError("the store is closed", remedy="Open it again."))
        return operation.future

    def call_idle(self, work: Callable[[], T]) -> T:
        """Run it on the writer thread while no write transaction is open, and wait."""
        return self.call(Operation(lambda view: work(), idle=True))

    def call(self, operation: Operation[T]) -> T:
        """Queue it and wait. Not from a future's callback: those run on the writer thread."""
        self._refuse_callbacks()
        return self.submit(operation).result()

    def close(self) -> None:
        """Finish everything queued, close the environment, end the thread. Idempotent."""
        self._refuse_callbacks()
        self.finish_soon()
        self._thread.join()
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def finish_soon(self) -> None:
        """The same without waiting."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _refuse_callbacks(self) -> None:
        if self.is_current_thread():
            raise StoreError(
                "the store was called from the callback of one of its futures",
                expected="a call from another thread",
                remedy="Hand the work to a thread of your own.",
            )

    # --- the writer thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while self._serve():
            pass
        try:
            self._environment.close()
        except StoreError as e:
            self._close_error = e

    def _serve(self) -> bool:
        """One batch; False once closed and drained. A call of its own, so that an idle thread keeps nothing
        of the last batch alive: callbacks of its futures may hold the store itself."""
        taken = self._take()
        if taken is None:
            return False
        # a future cancelled while it waited is dropped here; from now on it cannot be
        batch = [op for op in taken if op.future.set_running_or_notify_cancel()]
        try:
            if batch and batch[0].idle:
                batch[0].future.set_result(batch[0].apply(_NO_VIEW))
            elif batch:
                self._commit(batch)
        except BaseException as e:  # nobody may wait for a future for ever
            _fail(batch, e)
        return True

    def _take(self) -> list[Operation[Any]] | None:
        """Everything that waits, up to the batch size; None once closed and drained."""
        with self._wake:
            while not self._queue:
                if self._closing:
                    return None
                self._wake.wait()
            batch = [self._queue.popleft()]
            size = batch[0].size
            while self._queue and not (batch[-1].idle or self._queue[0].idle):
                if size + self._queue[0].size > _BATCH_BYTES:
                    break
                batch.append(self._queue.popleft())
                size += batch[-1].size
            return batch

    def _commit(self, batch: list[Operation[Any]]) -> None:
        if self._broken is not None:
            _fail(batch, self._broken)
            return
        cap = self._free_cap if len(batch) == 1 and batch[0].frees else self._append_cap
        try:
            self._attempt(batch, cap)
        except _NoRoom as e:
            if len(batch) == 1:
                _fail(batch, _full(e.what))
                return
            for operation in batch:
                self._commit([operation])
        finally:
            if cap > self._append_cap and self._environment.map_bytes > self._append_cap:
                self._environment.resize(self._append_cap)

    def _attempt(self, batch: list[Operation[Any]], cap: int) -> None:
        """Commit the batch, growing the map up to ``cap`` as needed; _NoRoom with nothing kept."""
        failed: dict[Operation[Any], BaseException] = {}
        while True:
            try:
                results = self._transact([op for op in batch if op not in failed], failed)
                break
            except _Retry:
                continue
            except lmdb.Error as e:
                if not is_full(e, self._environment.path):
                    self._broken = full_or_store_error(e, "committing")
                    raise self._broken from e
                if not self._grow(cap):
                    raise _NoRoom(str(e)) from e
        self._hook("committed")
        for operation, result in results.items():
            operation.future.set_result(result)
        for operation, error in failed.items():
            operation.future.set_exception(error)
        self._hook("acknowledged")

    def _transact(
        self, batch: list[Operation[Any]], failed: dict[Operation[Any], BaseException]
    ) -> dict[Operation[Any], Any]:
        environment = self._environment
        results: dict[Operation[Any], Any] = {}
        txn = environment.begin_write()
        try:
            view = WriteView(txn, environment.dbs, environment.snapshot)
            self._hook("begun")
            for operation in batch:
                before = view.writes
                try:
                    results[operation] = operation.apply(view)
                except lmdb.Error:
                    raise
                except Exception as e:  # whatever it is, it belongs to this caller
                    failed[operation] = e
                    if view.writes != before:
                        raise _Retry from e
            if view.writes:
                view.keep_clock(self._clock.reading())
            view.finish()
            self._hook("written")
            with environment.commit_lock:
                self._on_deleted(view)
                txn.commit()
                environment.snapshot = Snapshot(view.names, view.counters, view.manifests)
        except BaseException:
            txn.abort()
            raise
        return results

    def _grow(self, cap: int) -> bool:
        """Double the map, or what the disk and the cap allow of it; False if that is nothing."""
        now = self._environment.map_bytes
        step = min(now, _MAX_GROWTH_BYTES, cap - now)
        smallest = 64 << 10
        while step >= smallest:
            step -= step % smallest
            try:
                self._environment.resize(now + step)
            except OSError as e:
                if e.errno not in FULL_ERRNOS:
                    raise
                step //= 2
            else:
                return True
        return False


class _Retry(Exception):  # a signal inside this module, never seen outside
    """The transaction was aborted because an operation failed half way; run the others again."""


def _fail(batch: list[Operation[Any]], error: BaseException) -> None:
    for operation in batch:
        if not operation.future.done():
            operation.future.set_exception(error)


def _full(what: str) -> StoreFullError:
    return StoreFullError(
        "the store is full",
        got=what,
        remedy="Forget outputs, free disk space, or raise Limits.max_store_bytes; nothing of this was kept.",
    )
