"""The thread that seals and merges while a cache is open.

It looks once a second, does one thing at a time, and holds no lock that steps or commits need. What goes
wrong is logged and tried again, ever more rarely; drafting goes on from what is there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from suffixsvc.engine.sealing import Sealer
from suffixsvc.engine.tiering import MOST_SEGMENTS
from suffixsvc.errors import SegmentCancelledError, StoreClosedError, StoreFullError, SuffixError
from suffixsvc.index import NamespaceIndex

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
    """

    def __init__(
        self, sealer: Sealer, indexes: Mapping[str, NamespaceIndex], batch_tokens: int, *, start: bool = True
    ) -> None:
        self.sealer = sealer
        self._indexes = indexes
        self._batch_tokens = batch_tokens
        self._pid = os.getpid()
        self._work = threading.RLock()
        self._wake = threading.Event()
        self._sealed = threading.Condition()
        self._no_relief_before = 0.0
        self._stopping = False
        self._merged: dict[str, list[tuple[str, int]]] = {}  # path -> nothing to do with these
        self._pauses: dict[str, tuple[float, float]] = {}  # path -> (not before, the pause)
        self._thread = threading.Thread(target=self._run, name="suffixsvc-maintenance", daemon=True)
        if start:
            self._thread.start()

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
        self._wake.set()
        with self._sealed:
            self._sealed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with self._work:  # whoever works in another thread has noticed, too
            return

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_LOOK_EVERY_SECONDS)
            self._wake.clear()
            try:
                self.look()
            except (SegmentCancelledError, StoreClosedError):
                return
            except Exception:  # a defect of ours: serving goes on without sealing rather than not at all
                log.exception("maintenance failed")
                self._wake.wait(_LONGEST_PAUSE_SECONDS)

    def look(self) -> None:
        """Do what there is to do, once."""
        indexes = list(self._indexes.values())
        for index in indexes:
            self._tend(index)
        self._seal_the_largest(indexes)

    def relieve(self, index: NamespaceIndex) -> None:
        """Wait a little for sealing where the hot index of a namespace holds more than it should, as a bulk
        load is faster: called before a write. Where waiting does not help, nobody waits for a while."""
        if not self._much(index) or self._paused(index) or not self._thread.is_alive():
            return
        now = time.monotonic()
        if now < self._no_relief_before:
            return
        with self._sealed:
            self._wake.set()
            if not self._sealed.wait_for(
                lambda: self._stopping or self._paused(index) or not self._much(index), _LONGEST_WAIT_SECONDS
            ):
                self._no_relief_before = now + _RELIEF_PAUSE_SECONDS

    def _much(self, index: NamespaceIndex) -> bool:
        return index.hot_tokens > _HOT_BATCHES * self._batch_tokens

    def _tend(self, index: NamespaceIndex) -> None:
        if self._paused(index):
            return
        try:
            if any(each.segment.corrupt for each in index.sealed()):
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
            self._pauses.pop(index.path, None)

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
        if self._merged.get(index.path, []) == now:
            return False
        with self.work() as sealer:
            if sealer.merge(index):
                return True
        self._merged[index.path] = now
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
        return time.monotonic() < self._pauses.get(index.path, (0.0, 0.0))[0]

    def _pause(self, index: NamespaceIndex, error: Exception) -> None:
        before = self._pauses.get(index.path, (0.0, _FIRST_PAUSE_SECONDS / 2))[1]
        pause = min(2 * before, _LONGEST_PAUSE_SECONDS)
        self._pauses[index.path] = time.monotonic() + pause, pause
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
