"""The one thread that owns LMDB's write transactions, with group commit.

callers:  submit(operation) ──> queue, or the queue of bulk loads
                                        │ one in turn with the other; everything that waits, up to a size
writer:   begin ── apply, apply, ... ── commit (synced) ── resolve the futures ── next
             │         │                  │
             │         │                  ├── no room in the map: abort, grow it, redo the batch;
             │         │                  │   neither: redo one by one, refuse what does not fit
             │         │                  └── I/O error: take the commit back, open the file again, redo the
             │         │                      batch once; else refuse it, and everything until that works
             │         └── refused before its first write: that operation fails alone
             │             failed later: abort, redo the batch without it
             └── an LMDB transaction must begin, run and commit on one thread

An operation of several transactions goes to the end of no queue: its next slice is the next bulk transaction.
If one of them fails, what the others wrote is taken back.
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

from suffixsvc.clock import StoreClock
from suffixsvc.errors import StoreClosedError, StoreError, StoreFullError
from suffixsvc.interrupts import AtomicCondition
from suffixsvc.store.committer import FIRST_PAUSE_SECONDS, Committer, Retry
from suffixsvc.store.environment import Environment, is_full
from suffixsvc.store.listeners import call_listener
from suffixsvc.store.operations import SLICE_BYTES, SLICE_ROWS, Operation, Undo
from suffixsvc.store.tables import WriteView
from suffixsvc.types import StoredOutput

__all__ = ["Writer"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: what one transaction takes at most, so that its dirty pages stay far below LMDB's own limit
_BATCH_BYTES: Final = 32 << 20
_BATCH_ROWS: Final = 4096

#: what an idle operation gets; it must not look at it
_NO_VIEW: Final[Any] = None


class _NoRoom(Exception):  # a signal inside this module, never seen outside
    """The batch does not fit and the map cannot grow."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class Writer:
    """Queue and thread. The thread ends with :meth:`close` and no sooner, whatever is raised in it.

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
        self._file = Committer(
            environment,
            append_cap=append_cap,
            on_deleted=on_deleted,
            clock=clock,
            hook=hook or (lambda point: None),
        )
        self._queue: deque[Operation[Any]] = deque()
        self._bulk: deque[Operation[Any]] = deque()
        self._bulk_was_last = False
        self._wake = AtomicCondition()
        self._closing = False
        #: gets what a commit deleted, after it
        self.listener: Callable[[list[StoredOutput]], object] | None = None
        #: the last append that did not fit, while no other one would
        self._full: StoreFullError | None = None
        #: pages went with the last transactions that LMDB does not give out yet
        self._freed = False
        #: what must be taken back and could not be yet
        self._owed: deque[Undo] = deque()
        #: exceptions nobody foresaw
        self.defects = 0
        self._close_error: StoreError | None = None
        self._thread = threading.Thread(target=self._run, name="suffixsvc-store-writer", daemon=True)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Queue it. Errors, StoreClosedError included, arrive through the future."""
        try:
            self._environment.require_usable()
        except StoreClosedError as e:
            operation.fail(e)
            return operation.future
        with self._wake:
            if not self._closing:
                (self._bulk if operation.bulk else self._queue).append(operation)
                self._wake.notify()
                return operation.future
        operation.fail(StoreClosedError("the store is closed", remedy="Open it again."))
        return operation.future

    def call_idle(self, work: Callable[[], T]) -> T:
        """Run it on the writer thread while no write transaction is open, and wait."""
        return self.call(Operation(lambda view: work(), idle=True))

    def take_back(self, undo: Undo) -> None:
        """Delete the rows of an append that was never finished, and wait. What cannot be deleted now is
        deleted later, by itself and before anything else is written."""
        self.call_idle(lambda: self._owe(undo))

    def call(self, operation: Operation[T]) -> T:
        """Queue it and wait. Not from a future's callback: those run on the writer thread."""
        self._refuse_callbacks()
        return self.submit(operation).result()

    @property
    def reopened(self) -> int:
        """Times that the file was opened again."""
        return self._file.times_reopened

    def set_hook(self, hook: Callable[[str], None]) -> None:
        """Another one from now on."""
        self._file.hook = hook

    def failure(self) -> StoreError | None:
        """Why appends fail at this moment."""
        return self._file.broken or self._full or (_owing() if self._owed else None)

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
        while self._serve_safely():
            pass
        try:
            if self._file.broken is not None and not self._file.recover():
                log.error(
                    "store closed with an error", folder=self._environment.path, error=str(self._file.broken)
                )
            self._environment.close()
        except StoreError as e:
            self._close_error = e
        except BaseException as e:  # whoever waits for the close has to hear of it
            self._close_error = StoreError("the store did not close properly", got=repr(e))

    def _serve_safely(self) -> bool:
        try:
            return self._serve()
        except BaseException:
            self.defects += 1
            log.exception("the store's thread failed; it goes on", folder=self._environment.path)
            time.sleep(FIRST_PAUSE_SECONDS)  # what fails at once again must not take a core
            return True

    def _serve(self) -> bool:
        """One batch; False once closed and drained. A call of its own, so that an idle thread keeps nothing
        of the last batch alive: callbacks of its futures may hold the store itself."""
        taken = self._take()
        if taken is None:
            return False
        idle = bool(taken) and taken[0].idle
        try:
            batch = [operation for operation in taken if _starts(operation)]
            if batch and idle:
                batch[0].future.set_result(batch[0].apply(_NO_VIEW))
            elif batch:
                self._commit(batch)
        except StoreError as e:
            self._refuse(taken, e)
        except BaseException as e:  # no caller may wait for a future for ever
            self._refuse(taken, e)
            if not idle:
                raise
        # what fails from here on is no operation's failure
        if not taken:
            self._look_after()
        elif not idle:
            self._look_for_room()
        return True

    def _take(self) -> list[Operation[Any]] | None:
        """Everything that waits, of one queue, up to the batch size; nothing where it is time to look after a
        store that failed; None once closed and drained."""
        with self._wake:
            while not (self._queue or self._bulk):
                if self._closing:
                    return None
                if not (self._file.broken or self._full or self._owed):
                    self._wake.wait()
                elif self._file.pause.over():
                    return []
                else:
                    self._wake.wait(max(0.0, self._file.pause.until - time.monotonic()))
            is_bulk = bool(self._bulk) and not (self._queue and self._bulk_was_last)
            self._bulk_was_last = is_bulk
            queue = self._bulk if is_bulk else self._queue
            most_rows, most_bytes = (SLICE_ROWS, SLICE_BYTES) if is_bulk else (_BATCH_ROWS, _BATCH_BYTES)
            batch = [queue.popleft()]
            rows, size = batch[0].rows, batch[0].size
            while queue and not (batch[-1].idle or queue[0].idle):
                rows, size = rows + queue[0].rows, size + queue[0].size
                if rows > most_rows or size > most_bytes:
                    break
                batch.append(queue.popleft())
            return batch

    def _commit(self, batch: list[Operation[Any]]) -> None:
        if not self._file.usable():
            self._refuse(batch, self._file.broken)
            return
        if not self._pay() and not all(operation.frees for operation in batch):
            self._refuse(batch, _owing())
            return
        try:
            self._attempt_within(batch, self._append_cap)
        except _NoRoom as e:
            if self._release_freed():
                self._commit(batch)
                return
            if len(batch) == 1:
                error = _full(e.what)
                if not batch[0].frees:
                    self._note_full(error)
                self._refuse(batch, error)
                return
            for operation in batch:
                self._commit([operation])

    def _attempt_within(self, batch: list[Operation[Any]], cap: int) -> None:
        """The same, with the reserve where the batch makes room."""
        reserve = len(batch) == 1 and batch[0].frees
        try:
            self._attempt(batch, self._free_cap if reserve else cap)
        finally:
            if reserve and self._environment.map_bytes > cap:
                self._file.resize(cap)

    def _attempt(self, batch: list[Operation[Any]], cap: int) -> None:
        """Commit the batch, growing the map up to ``cap`` as needed; _NoRoom with nothing kept."""
        failed: dict[Operation[Any], BaseException] = {}
        reopened = False
        while True:
            try:
                results, deleted = self._file.transact([op for op in batch if op not in failed], failed)
                break
            except Retry:
                continue
            except lmdb.Error as e:
                no_room = is_full(e, self._environment.path)
                if self._environment.unsettled or not no_room:
                    broken = self._file.note_broken(e)
                    if not self._file.reopen() or (reopened and not no_room):
                        self._file.pause.begin()
                        raise broken from e
                    reopened = True
                if no_room and not (isinstance(e, lmdb.MapFullError) and self._file.grow(cap)):
                    raise _NoRoom(str(e)) from e
        if self._file.broken is not None:
            self._file.works()
        self._freed = self._freed or batch[0].frees
        self._file.hook("committed")
        for operation, result in results.items():
            call_listener(operation.decided, result)
        if deleted:  # after what was appended: an operation can delete what this very batch appends
            call_listener(self.listener, deleted)
        for operation, result in results.items():
            self._finish(operation, result)
        for operation, error in failed.items():
            self._refuse([operation], error)
        self._file.hook("acknowledged")

    # --- what came of an operation ------------------------------------------------------------------

    def _finish(self, operation: Operation[Any], result: Any) -> None:
        """It is committed; or a slice of it is, and the next one is due."""
        slices = operation.slices
        if slices is None:
            operation.future.set_result(result)
        elif slices.advance(result):
            operation.future.set_result(slices.result())
        else:
            with self._wake:
                (self._bulk if operation.bulk else self._queue).appendleft(operation)

    def _refuse(self, batch: list[Operation[Any]], error: BaseException | None) -> None:
        """Nothing of them is kept."""
        for operation in batch:
            if operation.future.done():
                continue
            try:
                undo = None if operation.slices is None else operation.slices.undo()
                if undo is not None:
                    self._owe(undo)
            finally:  # whatever is raised, nobody waits for ever, and the same is not owed twice
                operation.fail(error)

    def _owe(self, undo: Undo) -> None:
        self._owed.append(undo)
        self._pay()

    def _pay(self) -> bool:
        """Take back what was refused half way, as long as that works; whether nothing is left to take back.
        Before anything else is written: an output that is sent again must not be taken for one that is there,
        and then go."""
        while self._owed and self._file.broken is None:
            undo = Operation(self._owed[0].apply, frees=True)
            try:
                try:
                    self._attempt_within([undo], self._append_cap)
                except _NoRoom:
                    if self._release_freed() or self._owed[0].shrink():
                        continue
                    raise
                rows = undo.future.result()
            except Exception as e:  # whatever it is, it is tried again
                log.warning("refused outputs are not taken back yet", error=str(e))
                self._file.pause.begin()
                return False
            if self._owed[0].advance(rows):
                self._owed.popleft()
        return not self._owed

    # --- a store that failed ------------------------------------------------------------------------

    def _note_full(self, error: StoreFullError) -> None:
        """An append did not fit: it alone, or all of them?"""
        if not self._file.has_room():
            self._full = error
            self._file.pause.begin()

    def _look_for_room(self) -> None:
        """After a commit, and from time to time."""
        if self._full is None or self._file.broken is not None:
            return
        try:
            found = self._file.has_room() or (self._release_freed() and self._file.has_room())
        except (StoreError, lmdb.Error) as e:  # it is not known; looked for again later
            self._file.pause.begin()
            log.warning("cannot look for room yet", folder=self._environment.path, error=str(e))
            return
        if found:
            self._full = None
            self._file.pause.reset()
            log.info("store has room again", folder=self._environment.path)

    def _release_freed(self) -> bool:
        """LMDB gives out the pages that a transaction freed when another one has passed: let one pass. False
        where there are none."""
        if not self._freed:
            return False
        try:
            self._attempt_within([Operation(WriteView.touch, frees=True)], self._append_cap)
        except _NoRoom:
            return False
        finally:
            self._freed = False
        return True

    def _look_after(self) -> None:
        """What an idle thread does from time to time for a store that failed."""
        if not self._file.usable():
            return
        self._pay()
        self._look_for_room()
        if self._full is not None:
            self._file.pause.begin()


def _starts(operation: Operation[Any]) -> bool:
    """Whether there is something to do. An operation that was cancelled while it waited is dropped here; from
    now on it cannot be. One that has committed slices runs already, or was refused after the last one."""
    future = operation.future
    if future.running():
        return True
    if future.done() and not future.cancelled():
        return False
    if future.set_running_or_notify_cancel():
        return True
    call_listener(operation.decided, None)
    return False


def _owing() -> StoreError:
    return StoreError(
        "outputs of an append that was refused are still to be taken back",
        expected="that to be done before anything else is written",
        remedy="Nothing of this was kept. It is tried again by itself; try again then.",
    )


def _full(what: str) -> StoreFullError:
    return StoreFullError(
        "the store is full",
        got=what,
        remedy="Forget outputs, free disk space, or raise Limits.max_store_bytes; nothing of this was kept.",
    )
