"""Background thread that seals, merges, repairs and erases while a cache is open.

It runs once a second, does one thing at a time, and holds no lock that steps or commits need. Failures are
logged, counted and retried with exponential back-off per namespace; drafting continues with what is there. No
exception ends the thread (:mod:`suffixsvc.runtime.background`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import structlog

from suffixsvc.core.segments import reinstall_sigbus_handler
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.sealing.eraser import Eraser
from suffixsvc.engine.sealing.sealer import Sealer
from suffixsvc.engine.sealing.tiering import MAX_SEGMENTS
from suffixsvc.errors import SegmentCancelledError, StoreClosedError, StoreFullError, SuffixError
from suffixsvc.index import NamespaceIndex
from suffixsvc.runtime.background import PeriodicTask, TaskStats
from suffixsvc.runtime.signal_guard import AtomicCondition

log = structlog.get_logger(__name__)

_PERIOD_SECONDS: Final = 1.0
#: back-off after a failure, doubled up to the maximum
_FIRST_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 300.0
#: hot tokens of all namespaces in units of a seal's tokens; a namespace above it delays its writers
_MAX_HOT_BATCHES: Final = 4
#: maximum delay of a write; after a delay without effect, writes are not delayed for the pause
_MAX_WAIT_SECONDS: Final = 5.0
_BACKPRESSURE_PAUSE_SECONDS: Final = 60.0
#: to reduce the hot tokens of all namespaces, segments smaller than this share of a seal are not made
_SMALLEST_SHARE: Final = 64
#: deleted texts per call of Segment.correct_hubs
_CORRECTED_TEXTS: Final = 256


class Maintenance:
    """Seals, merges and repairs the namespaces of a cache in a background thread.

    Args:
        sealer: does the work.
        catalog: the namespaces of the cache.
        batch_tokens: hot tokens of a namespace from which it is sealed.
        finish_removals: removes texts of deleted outputs that are still indexed, as after an interrupt.
        eraser: erases deleted texts from the disk.
        start: start the thread.

    Attributes:
        sealer: as given; used by one thread at a time, see :meth:`work`.
        batch_tokens: as given.
    """

    def __init__(
        self,
        sealer: Sealer,
        catalog: Catalog,
        batch_tokens: int,
        finish_removals: Callable[[], object],
        eraser: Eraser,
        *,
        start: bool = True,
    ) -> None:
        self.sealer = sealer
        self._catalog = catalog
        self.batch_tokens = batch_tokens
        self._finish_removals, self._eraser = finish_removals, eraser
        self._pid = os.getpid()
        self._work_lock = threading.RLock()
        self._sealed = AtomicCondition()
        self._no_backpressure_before = 0.0
        self._stopping = False
        self._failures = self._failures_in_a_row = 0  # of namespaces
        self._last_success, self._last_error = 0.0, ""
        self._task = PeriodicTask("suffixsvc-maintenance", self.run_once, period_seconds=_PERIOD_SECONDS)
        if start:
            self._task.start()

    @contextmanager
    def work(self) -> Iterator[Sealer]:
        """Exclusive use of the sealer: outputs change their location in this block only.

        Its lock is taken before every other one of the engine.
        """
        with self._work_lock:
            yield self.sealer

    def stop(self) -> None:
        """Cancel the work in progress and end the thread. Idempotent."""
        if os.getpid() != self._pid:  # a forked child has neither the thread nor its locks
            return
        self._stopping = True
        self.sealer.builder.cancel()
        with self._sealed:
            self._sealed.notify_all()
        self._task.stop()
        with self._work_lock:  # work in other threads has ended as well
            return

    def stats(self) -> TaskStats:
        """Counters of the thread. A success is a run without a failed or paused namespace."""
        task = self._task.stats()
        return replace(
            task,
            failures=task.failures + self._failures,
            failures_in_a_row=task.failures_in_a_row + self._failures_in_a_row,
            last_success=self._last_success,
            last_error=self._last_error if self._failures else task.last_error,
        )

    def run_once(self) -> None:
        """Do all pending work once."""
        self._finish_removals()
        reinstall_sigbus_handler()
        indexes = self._catalog.stored()
        for index in indexes:
            self._maintain(index)
        self._seal_largest(indexes)
        self._erase()
        if self._eraser.failed or any(self._paused(index) for index in indexes):
            return
        self._failures_in_a_row, self._last_success = 0, time.time()

    def apply_backpressure(self, index: NamespaceIndex) -> None:
        """Delay a write to a namespace with too many hot tokens, as during a bulk load, until it is sealed.

        After a delay without effect, writes are not delayed for a while.
        """
        if not self._overloaded(index) or self._paused(index) or not self._task.alive:
            return
        now = time.monotonic()
        if now < self._no_backpressure_before:
            return
        with self._sealed:
            self._task.wake()
            if not self._sealed.wait_for(
                lambda: self._stopping or self._paused(index) or not self._overloaded(index),
                _MAX_WAIT_SECONDS,
            ):
                self._no_backpressure_before = now + _BACKPRESSURE_PAUSE_SECONDS

    def _overloaded(self, index: NamespaceIndex) -> bool:
        return index.hot_tokens > _MAX_HOT_BATCHES * self.batch_tokens

    def _maintain(self, index: NamespaceIndex) -> None:
        index.index.release_segments()
        if self._paused(index):
            return
        with self._pausing(index):
            if index.segments.absent or any(each.segment.corrupt for each in index.sealed()):
                with self.work() as sealer:
                    sealer.loader.repair(index)
            while self._seal_or_merge(index):
                pass
            for each in index.sealed():
                while not self._stopping and each.segment.correct_hubs(_CORRECTED_TEXTS):
                    pass
            index.maintenance.not_before = index.maintenance.pause_seconds = 0.0

    @contextmanager
    def _pausing(self, index: NamespaceIndex) -> Iterator[None]:
        """Pause the work on a namespace if the block fails."""
        try:
            yield
        except (SegmentCancelledError, StoreClosedError):
            raise
        except Exception as error:
            self._pause(index, error)

    def _seal_or_merge(self, index: NamespaceIndex) -> bool:
        """Seal first; but with the maximum of segments merge as well, because under sustained writes there
        would otherwise be no merge, and drafts would query ever more segments."""
        if index.hot_tokens < self.batch_tokens:
            return self._merge(index)
        merged = len(index.sealed()) >= MAX_SEGMENTS and self._merge(index)
        return self._seal(index) > 0 or merged

    def _seal(self, index: NamespaceIndex) -> int:
        with self.work() as sealer:
            sealed = 0 if self._stopping else sealer.seal(index)
        with self._sealed:
            self._sealed.notify_all()
        return sealed

    def _merge(self, index: NamespaceIndex) -> bool:
        """Merge; returns whether it did. Planned again only after the segments or their outputs changed."""
        if self._stopping:
            return False
        current = [(each.record.name, each.outputs) for each in index.sealed()]
        if index.maintenance.nothing_to_merge == current:
            return False
        with self.work() as sealer:
            if sealer.merge(index):
                return True
        index.maintenance.nothing_to_merge = current
        return False

    def _seal_largest(self, indexes: Collection[NamespaceIndex]) -> None:
        """Bound the hot tokens of many small namespaces together, which a restart would index again."""
        hot = sum(index.hot_tokens for index in indexes)
        for index in sorted(indexes, key=lambda index: -index.hot_tokens):
            before = index.hot_tokens
            enough = hot <= _MAX_HOT_BATCHES * self.batch_tokens
            if enough or before * _SMALLEST_SHARE < self.batch_tokens or self._stopping:
                return
            if not self._paused(index):
                with self._pausing(index):
                    self._seal(index)
            hot -= before - index.hot_tokens

    def _erase(self) -> None:
        """Erase deleted texts if that is due; after a failure it is retried, and the other work goes on."""
        if self._stopping or not self._eraser.due():
            return
        try:
            with self.work():
                self._eraser.run()
        except (SegmentCancelledError, StoreClosedError):
            raise
        except SuffixError as error:
            self._count_failure(error)
            log.warning("deleted outputs are not erased from the disk yet; it is retried", error=str(error))

    def _paused(self, index: NamespaceIndex) -> bool:
        return time.monotonic() < index.maintenance.not_before

    def _pause(self, index: NamespaceIndex, error: Exception) -> None:
        state = index.maintenance
        pause = min(2 * state.pause_seconds or _FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        state.not_before, state.pause_seconds = time.monotonic() + pause, pause
        self._count_failure(error)
        with self._sealed:
            self._sealed.notify_all()
        log_failure = log.warning if isinstance(error, StoreFullError) else log.error
        log_failure(
            "sealing failed; it is retried",
            namespace=index.path,
            seconds=pause,
            error=str(error),
            exc_info=not isinstance(error, SuffixError),
        )

    def _count_failure(self, error: Exception) -> None:
        self._failures += 1
        self._failures_in_a_row += 1
        self._last_error = f"{type(error).__name__}: {error}"
