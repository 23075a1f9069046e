"""Quotas of namespaces and of the whole cache: admission of writes and sessions.

    before a write             admit: reject outputs that would not fit even after every permitted eviction
    before a session is opened, or grows
                               admit_session: evict outputs of its namespace; reject what does not fit then
    after a write, and periodically
                               Evictor: evict outputs (suffixsvc.engine.limits.eviction)

The limit of the whole cache is enforced at admission. Opens, context, writes, and the steps of a session
beyond each UNMEASURED_TOKENS are admitted. docs/limits.md states what is counted, and why.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.limits.cache_usage import CacheUsage
from suffixsvc.engine.limits.eviction import RECLAIMABLE_SHARE, Evictor, average_size
from suffixsvc.engine.limits.principal_quotas import PrincipalQuotas
from suffixsvc.engine.limits.size_estimates import (
    PREDICTED_BYTES_PER_OUTPUT,
    PREDICTED_BYTES_PER_POSITION,
    SESSIONS_SHARE,
    predicted_bytes,
    predicted_session_bytes,
)
from suffixsvc.errors import LimitExceededError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.output_size import LOG_BYTES_PER_ATTRIBUTE_BYTE
from suffixsvc.policies import UNLIMITED
from suffixsvc.runtime.sync_points import SyncPoint
from suffixsvc.store.base import Store
from suffixsvc.types import NewOutput, OutputId


class QuotaManager:
    """Enforces the limits of one cache. Thread-safe.

    Args:
        max_cache_bytes: limit of the whole cache.
        store: the log.
        catalog: the namespaces of the cache.
        forget: see :class:`~suffixsvc.engine.limits.eviction.Evictor`.
        sync_point: see :mod:`suffixsvc.runtime.sync_points`.

    Attributes:
        usage: memory of the cache.
        evictor: evicts and expires outputs.
        principals: quotas of principals, of all namespaces together.
    """

    def __init__(
        self,
        max_cache_bytes: int,
        store: Store,
        catalog: Catalog,
        forget: weakref.WeakMethod[Callable[[str, Sequence[OutputId]], int]],
        sync_point: SyncPoint,
    ) -> None:
        self.usage = CacheUsage(max_cache_bytes, catalog)
        self.evictor = Evictor(self.usage, store, forget, sync_point)
        self.principals = PrincipalQuotas(catalog, self.evictor)
        #: held while an admission measures and reserves, so that admissions are serialised; separate from the
        #: lock of the sums and taken before it, because measuring all live sessions takes longer
        self._admission_lock = threading.Lock()

    @contextmanager
    def admit_session(
        self, index: NamespaceIndex, context: int, output: int, principal: str = ""
    ) -> Iterator[None]:
        """Admit the tokens of a session that is opened, or grows, in the block.

        During the block they count at their predicted size.

        Where the whole cache is full, outputs of the session's namespace are evicted; where the quota of its
        principal is reached, outputs of that.

        Args:
            context: tokens of prompt and context.
            output: tokens that the model wrote.
            principal: who writes the session.

        Raises:
            LimitExceededError: they do not fit. Nothing was evicted.
        """
        with (
            self.principals.admit_session(principal, context, output) as make_room,
            self._admit_session(index, context, output),
        ):
            make_room()
            yield

    @contextmanager
    def _admit_session(self, index: NamespaceIndex, context: int, output: int) -> Iterator[None]:
        usage = self.usage
        if not usage.limit:
            yield
            return
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
                    raise _session_too_large(index.path, tokens, size, usage.limit, usage.used, evictable)
                usage.reserved_live += size
        try:
            if beyond_share and excess > 0:
                self.evictor.reclaim(index, excess)
            yield
        finally:
            with usage.lock:
                usage.reserved_live -= size

    @contextmanager
    def admit(
        self, index: NamespaceIndex, outputs: Sequence[NewOutput], *, live_bytes: int = 0
    ) -> Iterator[None]:
        """Admit outputs that are written in the block, if they fit after every permitted eviction.

        Outputs on their way into the log can be evicted once they are there, unless they are pinned, so a
        slow disk causes no rejection. Until then a limit can be exceeded by their size.

        Args:
            live_bytes: memory that they have already as texts of live sessions, which ends with the write.

        Raises:
            LimitExceededError: they do not fit. Nothing was evicted.
        """
        with (
            self.principals.admit(index, outputs, live_bytes=live_bytes),
            self._admit(index, outputs, live_bytes=live_bytes),
        ):
            yield

    @contextmanager
    def _admit(
        self, index: NamespaceIndex, outputs: Sequence[NewOutput], *, live_bytes: int = 0
    ) -> Iterator[None]:
        usage, quota = self.usage, index.quota
        limit = quota.limit
        if limit >= UNLIMITED and not usage.limit:
            yield
            return
        size = sum(map(predicted_bytes, outputs))
        most = min(limit, usage.limit - usage.limit // SESSIONS_SHARE or UNLIMITED)
        if size > most:
            raise _outputs_too_large(index.path, len(outputs), size, most)
        size_pinned = sum(predicted_bytes(each) for each in outputs if not quota.evicts or each.corpus)
        self.evictor.note_drafts(index)  # drafts before this write are older than it
        usage.refresh(index)
        stored_pinned = _pinned_bytes(index)
        with self._admission_lock:
            sessions = usage.session_bytes(-live_bytes) if usage.limit else 0
            with usage.lock:
                pinned = stored_pinned + quota.reserved_pinned
                if pinned + size > limit:
                    raise _namespace_full(index.path, size, limit, pinned)
                if usage.limit:
                    evictable = quota.used + quota.reserved - pinned
                    # If the limit is exceeded already, as after it was lowered, a namespace that evicts as
                    # much as it writes is still admitted.
                    free = max(0, usage.limit - usage.used - usage.reserved - sessions)
                    if size - free > evictable:
                        raise _cache_full(index.path, size, usage.limit, usage.used, sessions, evictable)
                usage.reserve_locked(quota, size, size_pinned)
        try:
            yield
        finally:
            usage.release(quota, size, size_pinned)

    def reclaim(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> int:
        """Evict after a write of these outputs, in their namespace and of their principals; returns how many.

        Raises:
            StoreError: the store could not delete.
        """
        evicted = self.evictor.reclaim(index, sum(map(predicted_bytes, outputs)))
        return evicted + self.principals.reclaim(outputs)


def _pinned_bytes(index: NamespaceIndex) -> int:
    """Bytes of a namespace that are never evicted."""
    lru = index.lru
    if lru is None or not index.quota.evicts:
        return index.usage().bytes
    pinned = lru.pinned
    if not pinned.outputs:
        return 0
    used = index.usage().bytes
    return used - int(RECLAIMABLE_SHARE * max(0.0, used - average_size(index).total(pinned)))


def _outputs_too_large(path: str, outputs: int, size: int, limit: int) -> LimitExceededError:
    """The outputs of one call exceed a limit even without all other outputs."""
    what = "an output" if outputs == 1 else f"{outputs} outputs together"
    return LimitExceededError(
        f"{what} must be smaller than the limit of namespace {path}",
        expected=f"at most {limit} bytes",
        got=f"{size} bytes: {PREDICTED_BYTES_PER_OUTPUT}, {PREDICTED_BYTES_PER_POSITION} per token and"
        f" {LOG_BYTES_PER_ATTRIBUTE_BYTE} per byte of labels",
        remedy="Add fewer or shorter outputs at a time, or raise max_bytes in the namespace's policy"
        " (Limits.max_cache_bytes for the whole cache).",
    )


def _namespace_full(path: str, size: int, limit: int, pinned: int) -> LimitExceededError:
    """The outputs do not fit besides the pinned outputs of their namespace."""
    return LimitExceededError(
        f"namespace {path} is full of pinned outputs",
        expected=f"at most {limit} bytes",
        got=f"{pinned} pinned bytes and {size} more",
        remedy="Forget outputs, unpin the namespace, or raise max_bytes in its policy; nothing was evicted.",
    )


def _cache_full(
    path: str, size: int, limit: int, used: int, sessions: int, evictable: int
) -> LimitExceededError:
    """The cache is full, and the namespace has too few outputs to evict for a write."""
    return LimitExceededError(
        f"the cache is full and namespace {path} has too few outputs to evict",
        expected=f"at most {limit} bytes of all namespaces, 1/{SESSIONS_SHARE} of them for live sessions "
        "(Limits.max_cache_bytes)",
        got=f"{used} bytes of outputs, {max(0, evictable)} of them evictable in this namespace, {sessions} "
        f"of live sessions or for them, and {size} more",
        remedy="Close sessions, lower limits of other namespaces, or raise this one; nothing was evicted.",
    )


def _session_too_large(
    path: str, tokens: int, size: int, limit: int, used: int, evictable: int
) -> LimitExceededError:
    """The cache is full, and the namespace has too few outputs to evict for a session's tokens."""
    return LimitExceededError(
        f"{tokens} tokens of a session in namespace {path} do not fit in memory",
        expected=f"at most {limit} bytes of outputs and live sessions (Limits.max_cache_bytes)",
        got=f"{used} bytes of outputs, {evictable} of them evictable in this namespace, and {size} more",
        remedy="Close sessions, open with a shorter prompt, or raise the limit; live sessions go on.",
    )
