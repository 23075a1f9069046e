"""Eviction of least recently used outputs, expiry by policy, and persistence of the LRU order.

    reclaim   after a write or before a session grows: one namespace, down to its limits
    evict     periodically: every namespace, down to its own limit
    expire    periodically: outputs older than their policy's time to live

A namespace is evicted by its own writes and sessions, and periodically down to its own limit; never by those
of another namespace. When the cache is full, a write evicts from its own namespace what the cache exceeds
its limit by and 2 % of the namespace more, but at most twice its own size or 2 % of the namespace, whichever
is larger. For a session that grows, the excess itself counts as its size.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

import structlog

from suffixsvc.clock import ExpiryCutoff
from suffixsvc.engine.limits.cache_usage import CacheUsage
from suffixsvc.errors import StoreError, StoreFullError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.lru_index import AverageSize, LruIndex
from suffixsvc.index.output_size import (
    LOG_BYTES_PER_ATTRIBUTE_BYTE,
    LOG_BYTES_PER_OUTPUT,
    LOG_BYTES_PER_TOKEN,
    OutputSize,
)
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.base import Store
from suffixsvc.types import OutputId

log = structlog.get_logger(__name__)

#: a namespace above its limit is reduced to this share of it, so that not every write has to evict
LOW_WATERMARK: Final = 0.95
#: when the cache is full, a write evicts this share of its namespace beyond the excess, so that the next ones
#: need not evict; and it evicts at most this share or twice its own size, so that no single write pays for a
#: limit that was lowered, and small ones still make progress
STEP_SHARE: Final = 0.02
#: with pinned outputs in a namespace: share of the estimated bytes of the others that eviction surely frees
RECLAIMABLE_SHARE: Final = 0.9
#: limits of one transaction; a namespace within its limits evicts at most one per call
BATCH_OUTPUTS: Final = 256
BATCH_TOKENS: Final = 1 << 20
#: name of the saved LRU order in the store; on the disk (docs/format.md), so it must not be renamed
_LRU_STATE: Final = "drafted"
#: minimum interval of saves; the close saves as well
_SAVE_INTERVAL_SECONDS: Final = 300.0


class Evictor:
    """Evicts and expires the outputs of one cache. Thread-safe.

    Args:
        usage: memory of the cache.
        store: the log.
        forget: deletes outputs of a namespace from log and index, and returns how many existed; weak, because
            it is a method of the owner.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.
    """

    def __init__(
        self,
        usage: CacheUsage,
        store: Store,
        forget: weakref.WeakMethod[Callable[[str, Sequence[OutputId]], int]],
        sync_point: SyncPoint,
    ) -> None:
        self._usage = usage
        self._store = store
        self._weak_forget = forget
        self._sync_point = sync_point
        self._opened_lsn = store.stats().last_lsn
        self._saved_at = 0.0

    # ----------------------------------------------------------------------------------------- one namespace

    def reclaim(self, index: NamespaceIndex, caused: int = 0) -> int:
        """Evict outputs of a namespace until it is within its limits; returns how many.

        Pinned outputs and those of pinned namespaces are not evicted. A namespace within its limit that is on
        the way to the low watermark evicts one transaction.

        Args:
            caused: bytes that the caller has written, or (before a session grows) by which the cache would
                exceed its limit. In a full cache the namespace evicts at most twice that or 2 % of itself,
                whichever is larger. 0: only the namespace's own limit counts.

        Raises:
            StoreError: the store could not delete.
        """
        self._usage.refresh(index)
        lru = index.lru
        if lru is None or not index.quota.evicts or not self._excess(index, lru, caused)[0]:
            return 0
        with lru.eviction_lock:
            self.note_drafts(index)
            evicted = batches = 0
            cache_budget = max(2 * caused, int(index.usage().bytes * STEP_SHARE)) if caused else 0
            while True:
                need, required = self._excess(index, lru, cache_budget)
                if need <= 0 or (batches and not required):
                    break
                chosen = lru.least_recently_used(need, average_size(index), BATCH_OUTPUTS, BATCH_TOKENS)
                if not chosen:
                    break
                before = index.usage().bytes
                evicted += self._evict(index, lru, chosen)
                self._usage.refresh(index)
                cache_budget -= max(0, before - index.usage().bytes) if caused else 0
                batches += 1
            return evicted

    def _excess(self, index: NamespaceIndex, lru: LruIndex, cache_budget: int) -> tuple[int, bool]:
        """(bytes to evict, whether a limit is exceeded now, so that eviction must go on).

        False: only on the way to the low watermark. Updates ``lru.shrinking``.

        Args:
            cache_budget: most bytes to evict for the limit of the whole cache; 0 or less: it does not count.
        """
        usage = self._usage
        sessions = usage.session_bytes() if usage.limit else 0
        with usage.lock:
            used, excess = index.quota.used, usage.used + sessions - usage.limit
        limit = index.quota.limit
        exceeded = used > limit
        lru.shrinking = exceeded or (lru.shrinking and used > limit * LOW_WATERMARK)
        need = used - int(limit * LOW_WATERMARK) if lru.shrinking else 0
        if usage.limit and excess > 0 and cache_budget > 0:
            need, exceeded = max(need, min(excess + int(used * STEP_SHARE), cache_budget)), True
        return need, exceeded

    def evict_outputs(self, index: NamespaceIndex, outputs: Sequence[OutputId]) -> int:
        """Evict these outputs of a namespace; returns how many existed.

        Raises:
            StoreError: the store could not delete.
        """
        if index.lru is None:
            return 0
        with index.lru.eviction_lock:
            evicted = self._evict(index, index.lru, outputs)
        self._usage.refresh(index)
        return evicted

    def _evict(self, index: NamespaceIndex, lru: LruIndex, outputs: Sequence[OutputId]) -> int:
        ids = " ".join(map(str, outputs))
        self._sync_point(f"evict-chosen {ids}")
        idle = lru.idle_seconds(outputs, self._store.clock.now_us())
        evicted = self._forget(index.path, outputs)
        if index.use is not None:
            index.use.idle_seconds.observe(idle)
        lru.remove(outputs)  # all of them: another caller may have deleted some
        self._sync_point(f"evict-done {ids}")
        index.count_evicted(evicted)
        return evicted

    def _forget(self, path: str, outputs: Sequence[OutputId]) -> int:
        forget = self._weak_forget()
        return 0 if forget is None else forget(path, outputs)

    # ------------------------------------------------------------------------------------------ periodically

    def evict(self, indexes: Sequence[NamespaceIndex]) -> int:
        """Reduce every namespace to its own limit; returns how many outputs were evicted."""
        for index in indexes:
            with _unless_deleted(index):
                self.note_drafts(index)  # before the core's bounded record overflows
            self._usage.refresh(index)
        evicted = 0
        for index in indexes:
            with _unless_deleted(index):
                evicted += self.reclaim(index)
        return evicted

    def expire(self, indexes: Sequence[NamespaceIndex], cutoff: ExpiryCutoff) -> int:
        """Delete outputs whose policy's time to live has passed; returns how many."""
        expired = 0
        for index in indexes:
            ttl, lru = index.quota.policy.ttl_seconds, index.lru
            if not ttl or lru is None or not index.quota.evicts:
                continue
            with _unless_deleted(index):
                self._load_lru(index.path, lru)
                while (count := self._expire_batch(index.path, lru, cutoff, int(ttl * 1e6))) is not None:
                    expired += count
            self._usage.refresh(index)
        return expired

    def _expire_batch(self, path: str, lru: LruIndex, cutoff: ExpiryCutoff, ttl_us: int) -> int | None:
        """Delete a batch of expired outputs; returns how many existed, None if none has expired."""
        with lru.eviction_lock:  # per batch, so that a write can evict in between
            batch = lru.expired(cutoff.earlier_us - ttl_us, BATCH_OUTPUTS)
            if not batch and cutoff.earlier_us < cutoff.now_us:
                batch = lru.expired(cutoff.now_us - ttl_us, BATCH_OUTPUTS, after=self._opened_lsn)
            if not batch:
                return None
            count = self._forget(path, batch)
            lru.remove(batch)
            return count

    # ------------------------------------------------------------------------------------------- persistence

    def note_drafts(self, index: NamespaceIndex) -> None:
        """Record which outputs drafts were taken from, in the LRU order if there is one."""
        if index.lru is not None and index.quota.limited:
            self._load_lru(index.path, index.lru)
        index.note_drafts()

    def count(self, index: NamespaceIndex) -> None:
        """Have the rows of a limited namespace counted for its statistics, if the log can be read."""
        if index.quota.limited:
            with suppress(StoreError):
                self.load(index)

    def load(self, index: NamespaceIndex) -> None:
        """Add the outputs of earlier processes to the LRU order of a namespace, if that was not done."""
        if index.lru is not None:
            with _unless_deleted(index):
                self._load_lru(index.path, index.lru)

    def _load_lru(self, path: str, lru: LruIndex) -> None:
        """Add the outputs of earlier processes to an LRU order.

        Done at the first use, so that opening a cache does not read the whole log.
        """
        if lru.complete:
            return
        with lru.eviction_lock:
            if lru.complete:
                return
            lru.begin_load()
            for row in self._store.outline(path):
                if row.output_id > self._opened_lsn:
                    break  # added when it was written
                lru.add(
                    row.output_id,
                    int(row.written_at * 1e6),
                    OutputSize(1, row.tokens, row.tail_tokens, row.attribute_bytes),
                    pinned=row.corpus,
                    own_ttl=row.ttl_seconds > 0,
                    principal=row.principal,
                    logged=True,
                )
            saved = self._store.get_state(path, _LRU_STATE)
            if saved is not None:
                lru.load(saved)  # a blob of another version is ignored
            lru.end_load()

    def save(self, indexes: Iterable[NamespaceIndex], now: float | None = None) -> None:
        """Save the LRU orders for the next process.

        Args:
            now: seconds; nothing is saved within five minutes of the last save. None: save in any case.
        """
        if now is not None and abs(now - self._saved_at) < _SAVE_INTERVAL_SECONDS:
            return
        self._saved_at = self._saved_at if now is None else now
        for index in indexes:
            with _unless_deleted(index):
                self._save(index)

    def _save(self, index: NamespaceIndex) -> None:
        self.note_drafts(index)
        if index.lru is None or not index.quota.evicts or not index.lru.dirty:
            return
        order = index.lru.save()
        try:
            self._store.put_state(index.path, _LRU_STATE, order)
        except BaseException as error:
            index.lru.dirty = True  # the next save includes it
            if not isinstance(error, StoreFullError):
                raise
            log.warning("the eviction order could not be saved", namespace=index.path, error=str(error))


def average_size(index: NamespaceIndex) -> AverageSize:
    """The average size of a namespace's outputs."""
    size, held = index.usage()
    exact = AverageSize(LOG_BYTES_PER_OUTPUT, 0, LOG_BYTES_PER_ATTRIBUTE_BYTE)
    per_token = (held - exact.total(size)) / max(1, size.tokens)
    return replace(exact, per_token=max(LOG_BYTES_PER_TOKEN, per_token))


@contextmanager
def _unless_deleted(index: NamespaceIndex) -> Iterator[None]:
    """Suppress the store's UnknownNamespaceError if the namespace was deleted concurrently."""
    try:
        yield
    except UnknownNamespaceError:
        if not index.deleted:
            raise
