"""Quotas of namespaces and of the whole cache: admission of writes and sessions.

    before a write             admit: reject outputs that would not fit even after every permitted eviction
    before a session is opened, or grows by more than a decode step
                               admit_session: evict outputs of its namespace; reject what does not fit then
    after a write, and periodically
                               Evictor: evict outputs (suffixsvc.engine.limits.eviction)

The limit of the whole cache is enforced at admission. Opens, context, writes, and steps of more tokens than a
draft and one are admitted; decode steps always proceed, so live sessions can exceed the limit by what models
write. Opens and writes are rejected then. docs/limits.md states what is counted, and why.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from suffixsvc.engine.base.index_table import IndexTable
from suffixsvc.engine.limits.cache_usage import CacheUsage
from suffixsvc.engine.limits.eviction import RECLAIMABLE_SHARE, Evictor, average_size
from suffixsvc.engine.limits.limit_errors import (
    cache_full,
    namespace_full,
    outputs_too_large,
    session_too_large,
)
from suffixsvc.engine.limits.size_estimates import SESSIONS_SHARE, predicted_bytes, predicted_session_bytes
from suffixsvc.errors import InvalidConfigError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.lru_index import LruIndex
from suffixsvc.policies import UNLIMITED, Policies, Policy
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.types import NewOutput, OutputId, Store

__all__ = ["QuotaManager"]

log = structlog.get_logger(__name__)

#: a shorter grace period is not logged: it is that of a restart
_LOGGED_GRACE_SECONDS: Final = 60.0


class QuotaManager:
    """Enforces the limits of one cache. Thread-safe.

    Args:
        policies: policies of the namespaces.
        max_cache_bytes: limit of the whole cache.
        store: the log.
        indexes: the indexes of the cache.
        forget: see :class:`~suffixsvc.engine.limits.eviction.Evictor`.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        usage: memory of the cache.
        evictor: evicts and expires outputs.
    """

    def __init__(
        self,
        policies: Policies,
        max_cache_bytes: int,
        store: Store,
        indexes: IndexTable,
        forget: weakref.WeakMethod[Callable[[str, Sequence[OutputId]], int]],
        sync_point: SyncPoint,
    ) -> None:
        if not isinstance(policies, Policies):
            raise InvalidConfigError(
                "policies must be a Policies instance or None", got=type(policies).__name__
            )
        self._policies = policies
        self.usage = CacheUsage(max_cache_bytes, indexes)
        self.evictor = Evictor(self.usage, store, forget, sync_point)
        #: held while an admission measures and reserves, so that admissions are serialised; separate from the
        #: lock of the sums and taken before it, because measuring all live sessions takes longer
        self._admission_lock = threading.Lock()
        grace_seconds = store.clock.grace_seconds
        if policies.has_ttl and grace_seconds >= _LOGGED_GRACE_SECONDS:
            log.info(
                "times to live of policies count the time in which the cache was closed after a grace period",
                closed_seconds=round(store.clock.moved_seconds),
                grace_seconds=round(grace_seconds),
            )

    def policy(self, path: str) -> Policy:
        """The effective policy of a new namespace."""
        return self._policies.of(path)

    def new_lru_index(self, policy: Policy) -> LruIndex | None:
        """The LRU index of a new namespace; None where outputs are neither evicted nor expired by policy."""
        limited = policy.max_bytes not in (None, UNLIMITED) or self.usage.limit or policy.ttl_seconds
        return LruIndex() if limited and not policy.pinned else None

    def admit_session(self, index: NamespaceIndex, context: int, output: int) -> Callable[[], None]:
        """Admit the tokens of a session that is opened or grows by more than a decode step.

        Where the whole cache is full, outputs of the session's namespace are evicted.

        Args:
            context: tokens of prompt and context.
            output: tokens that the model wrote.

        Returns:
            The release function, to be called when the session has the tokens, or will not have them. Until
            then they count at their predicted size.

        Raises:
            LimitExceededError: they do not fit. Nothing was evicted.
        """
        usage = self.usage
        if not usage.limit:
            return _no_release
        size = predicted_session_bytes(context, output)
        usage.refresh(index)
        pinned = _pinned_bytes(index)
        with self._admission_lock:
            sessions = usage.session_bytes(size)
            beyond_share = sessions > usage.limit // SESSIONS_SHARE
            with usage.lock:
                evictable = max(0, index.quota.used - pinned)
                excess = usage.used + usage.reserved + sessions - usage.limit
                if beyond_share and excess > evictable:
                    tokens = context + output
                    raise session_too_large(index.path, tokens, size, usage.limit, usage.used, evictable)
                usage.reserved_live += size
        release = _once(lambda: usage.release_live(size))
        if beyond_share and excess > 0:
            try:
                self.evictor.reclaim(index, excess)
            except BaseException:
                release()
                raise
        return release

    def admit(
        self, index: NamespaceIndex, outputs: Iterable[NewOutput], *, live: bool = False
    ) -> Callable[[], None]:
        """Admit outputs that are about to be written, if they fit after every permitted eviction.

        Outputs on their way into the log can be evicted once they are there, unless they are pinned, so a
        slow disk causes no rejection. Until then a limit can be exceeded by their size.

        Args:
            live: they are counted already, as texts of live sessions.

        Returns:
            The release function, to be called when they were written, or not.

        Raises:
            LimitExceededError: they do not fit. Nothing was evicted.
        """
        usage, quota = self.usage, index.quota
        limit = quota.limit
        if limit >= UNLIMITED and not usage.limit:
            return _no_release
        outputs = list(outputs)
        size = sum(map(predicted_bytes, outputs))
        most = min(limit, usage.limit - usage.limit // SESSIONS_SHARE or UNLIMITED)
        if size > most:
            raise outputs_too_large(index.path, len(outputs), size, most)
        size_pinned = sum(predicted_bytes(each) for each in outputs if index.lru is None or each.corpus)
        self.evictor.note_drafts(index)  # drafts before this write are older than it
        usage.refresh(index)
        stored_pinned = _pinned_bytes(index)
        with self._admission_lock:
            sessions = usage.session_bytes(-size if live else 0) if usage.limit else 0
            with usage.lock:
                pinned = stored_pinned + quota.reserved_pinned
                if pinned + size > limit:
                    raise namespace_full(index.path, size, limit, pinned)
                if usage.limit:
                    evictable = quota.used + quota.reserved - pinned
                    # If the limit is exceeded already, as after it was lowered, a namespace that evicts as
                    # much as it writes is still admitted.
                    free = max(0, usage.limit - usage.used - usage.reserved - sessions)
                    if size - free > evictable:
                        raise cache_full(index.path, size, usage.limit, usage.used, evictable)
                usage.reserve_locked(quota, size, size_pinned)
        return _once(lambda: usage.release(quota, size, size_pinned))


def _pinned_bytes(index: NamespaceIndex) -> int:
    """Bytes of a namespace that are never evicted."""
    lru = index.lru
    if lru is None:
        return index.usage().bytes
    outputs, tokens = lru.pinned
    if not outputs:
        return 0
    used = index.usage().bytes
    return used - int(RECLAIMABLE_SHARE * max(0.0, used - average_size(index).total(outputs, tokens)))


def _no_release() -> None:
    return


def _once(release: Callable[[], None]) -> Callable[[], None]:
    pending = [release]

    def run() -> None:
        if pending:
            pending.pop()()

    return run
