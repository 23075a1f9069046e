"""The thread that seals and merges while a cache is open.

It looks once a second, does one thing at a time, and holds no lock that steps or commits need. What goes
wrong is logged, counted and tried again, ever more rarely; drafting goes on from what is there. No exception
ends the thread (:mod:`suffixsvc.background`).
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

from suffixsvc.background import PeriodicTask, TaskStats
from suffixsvc.core.segments import keep_guarding
from suffixsvc.engine.indexes import Indexes
from suffixsvc.engine.sealing import Sealer
from suffixsvc.engine.tiering import MOST_SEGMENTS
from suffixsvc.errors import SegmentCancelledError, StoreClosedError, StoreFullError, SuffixError
from suffixsvc.index import NamespaceIndex
from suffixsvc.interrupts import AtomicCondition

__all__ = ["Maintenance"]

log = structlog.get_logger(__name__)

_LOOK_EVERY_SECONDS: Final = 1.0
#: after a failure; doubled up to the longest
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
#: all namespaces together may have so many seals' tokens hot; one that has more makes its writers wait
_HOT_BATCHES: Final = 4
#: a write waits no longer for sealing, and after that in vain no write waits for so long
_LONGEST_WAIT_SECONDS: Final = 5.0
_RELIEF_PAUSE_SECONDS: Final = 60.0
#: for that, smaller segments than this share of a seal are not made
_SMALLEST_SHARE: Final = 64
#: forgotten texts that are settled at a time
_SETTLED_TEXTS: Final = 256


class Maintenance:
    """Seals, merges and repairs the namespaces of a cache in a thread of its own.

    Args:
        sealer: what does it.
        indexes: of the cache; others add to it.
        batch_tokens: hot tokens of a namespace from which on it is sealed.
        settle: takes out of the indexes what was forgotten and is still there, as after an interrupt.
    """

    def __init__(
        self,
        sealer: Sealer,
        indexes: Indexes,
        batch_tokens: int,
        settle: Callable[[], object],
        *,
        start: bool = True,
    ) -> None:
        self.sealer = sealer
        self._indexes = indexes
        self._batch_tokens = batch_tokens
        self._settle = settle
        self._pid = os.getpid()
        self._work = threading.RLock()
        self._sealed = AtomicCondition()
        self._no_relief_before = 0.0
        self._stopping = False
        self._failures = self._failures_in_a_row = 0  # of namespaces
        self._last_success, self._last_error = 0.0, ""
        self._task = PeriodicTask("suffixsvc-maintenance", self.look, period_seconds=_LOOK_EVERY_SECONDS)
        if start:
            self._task.start()

    @contextmanager
    def work(self) -> Iterator[Sealer]:
        """The sealer for a while; nothing changes places meanwhile. Not with a cache's lock held."""
        with self._work:
            yield self.sealer

    def stop(self) -> None:
        """End what is under way, and the thread. Idempotent."""
        if os.getpid() != self._pid:  # a forked child has neither the thread nor its locks
            return
        self._stopping = True
        self.sealer.cancel()
        with self._sealed:
            self._sealed.notify_all()
        self._task.stop()
        with self._work:  # whoever works in another thread has noticed, too
            return

    def stats(self) -> TaskStats:
        """What came of it. A success is a look in which no namespace failed or was left out after a
        failure."""
        task = self._task.stats()
        return replace(
            task,
            failures=task.failures + self._failures,
            failures_in_a_row=task.failures_in_a_row + self._failures_in_a_row,
            last_success=self._last_success,
            last_error=self._last_error if self._failures else task.last_error,
        )

    def look(self) -> None:
        """Do what there is to do, once."""
        self._settle()
        keep_guarding()
        indexes = self._indexes.stored()
        for index in indexes:
            self._tend(index)
        self._seal_the_largest(indexes)
        if not any(self._paused(index) for index in indexes):
            self._failures_in_a_row, self._last_success = 0, time.time()

    def relieve(self, index: NamespaceIndex) -> None:
        """Wait a little for sealing where the hot index of a namespace holds more than it should, as a bulk
        load is faster: called before a write. Where waiting does not help, nobody waits for a while."""
        if not self._much(index) or self._paused(index) or not self._task.alive:
            return
        now = time.monotonic()
        if now < self._no_relief_before:
            return
        with self._sealed:
            self._task.wake()
            if not self._sealed.wait_for(
                lambda: self._stopping or self._paused(index) or not self._much(index), _LONGEST_WAIT_SECONDS
            ):
                self._no_relief_before = now + _RELIEF_PAUSE_SECONDS

    def _much(self, index: NamespaceIndex) -> bool:
        return index.hot_tokens > _HOT_BATCHES * self._batch_tokens

    def _tend(self, index: NamespaceIndex) -> None:
        index.index.release_segments()
        if self._paused(index):
            return
        try:
            if index.unloaded or any(each.segment.corrupt for each in index.sealed()):
                with self.work() as sealer:
                    sealer.repair(index)
            while self._seal_or_merge(index):
                pass
            for each in index.sealed():
                while not self._stopping and each.segment.settle(_SETTLED_TEXTS):
                    pass
        except (SegmentCancelledError, StoreClosedError):
            raise
        except Exception as error:
            self._pause(index, error)
        else:
            index.upkeep.not_before = index.upkeep.pause_seconds = 0.0

    def _seal_or_merge(self, index: NamespaceIndex) -> bool:
        """One of them, or one of each: sealing goes first, but under a flood of writes there would never be
        time to merge, and each draft would ask more and more segments."""
        if index.hot_tokens < self._batch_tokens:
            return self._do_merge(index)
        merged = len(index.sealed()) >= MOST_SEGMENTS and self._do_merge(index)
        return self._do_seal(index) > 0 or merged

    def _do_seal(self, index: NamespaceIndex) -> int:
        with self.work() as sealer:
            sealed = 0 if self._stopping else sealer.seal(index)
        with self._sealed:
            self._sealed.notify_all()
        return sealed

    def _do_merge(self, index: NamespaceIndex) -> bool:
        """Whether something was merged. Planned again only when segments or what is left of them changed."""
        if self._stopping:
            return False
        now = [(each.record.name, each.outputs) for each in index.sealed()]
        if index.upkeep.merged == now:
            return False
        with self.work() as sealer:
            if sealer.merge(index):
                return True
        index.upkeep.merged = now
        return False

    def _seal_the_largest(self, indexes: Collection[NamespaceIndex]) -> None:
        """Many small namespaces: a restart indexes again what is hot in all of them."""
        hot = sum(index.hot_tokens for index in indexes)
        for index in sorted(indexes, key=lambda index: -index.hot_tokens):
            before = index.hot_tokens
            enough = hot <= _HOT_BATCHES * self._batch_tokens
            if enough or before * _SMALLEST_SHARE < self._batch_tokens or self._stopping:
                return
            if not self._paused(index):
                try:
                    self._do_seal(index)
                except (SegmentCancelledError, StoreClosedError):
                    raise
                except Exception as error:
                    self._pause(index, error)
            hot -= before - index.hot_tokens

    def _paused(self, index: NamespaceIndex) -> bool:
        return time.monotonic() < index.upkeep.not_before

    def _pause(self, index: NamespaceIndex, error: Exception) -> None:
        upkeep = index.upkeep
        pause = min(2 * upkeep.pause_seconds or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        upkeep.not_before, upkeep.pause_seconds = time.monotonic() + pause, pause
        self._failures += 1
        self._failures_in_a_row += 1
        self._last_error = f"{type(error).__name__}: {error}"
        with self._sealed:
            self._sealed.notify_all()
        say = log.warning if isinstance(error, StoreFullError) else log.error
        say(
            "sealing failed; it is tried again",
            namespace=index.path,
            seconds=pause,
            error=str(error),
            exc_info=not isinstance(error, SuffixError),
        )
