"""Memory of all namespaces and live sessions, compared with the limit of the whole cache."""

from __future__ import annotations

import threading

from suffixsvc.config import NO_LIMIT_BYTES
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.limits.size_estimates import SESSIONS_SHARE
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.engine_state import Quota
from suffixsvc.policies import UNLIMITED


class CacheUsage:
    """Sums over all namespaces of what their quotas count. Thread-safe.

    Args:
        max_cache_bytes: limit of the whole cache; NO_LIMIT_BYTES or more: none.
        catalog: the namespaces of the cache.

    Attributes:
        limit: limit of the whole cache in bytes, 0 = none.
        lock: guards the sums and the quotas of all namespaces.
        used: bytes of all outputs, as last measured.
        reserved: bytes that were admitted and are not in the log yet.
        reserved_live: bytes of sessions that are being opened, or grow.
    """

    def __init__(self, max_cache_bytes: int, catalog: Catalog) -> None:
        self.limit = 0 if max_cache_bytes >= NO_LIMIT_BYTES else max_cache_bytes
        self._catalog = catalog
        self.lock = threading.Lock()
        self.used = 0
        self.reserved = 0
        self.reserved_live = 0

    def live_bytes(self) -> int:
        """Memory of all live sessions, including those of deleted namespaces."""
        return self._catalog.totals.live_bytes()

    def session_bytes(self, more: int = 0) -> int:
        """The part of the cache's limit that is not for outputs: the live sessions, but at least their share.

        Args:
            more: predicted bytes that are about to be added.
        """
        with self.lock:
            growing = self.reserved_live  # read before the sum, so that no released bytes are missed
        return max(self.live_bytes() + growing + more, self.limit // SESSIONS_SHARE)

    def refresh(self, index: NamespaceIndex) -> None:
        """Measure the outputs of a namespace again."""
        quota = index.quota
        if quota.limit >= UNLIMITED and not self.limit:
            return
        used = index.usage().bytes
        with self.lock:
            if not quota.dropped:
                self.used += used - quota.used
                quota.used = used

    def drop(self, index: NamespaceIndex) -> None:
        """Stop counting a deleted namespace."""
        with self.lock:
            self.used -= index.quota.used
            index.quota.used = 0
            index.quota.dropped = True

    def reserve_locked(self, quota: Quota, size: int, pinned: int) -> None:
        """Reserve admitted bytes, ``pinned`` of them for outputs that are never evicted. The lock is held."""
        self.reserved += size
        quota.reserved += size
        quota.reserved_pinned += pinned

    def release(self, quota: Quota, size: int, pinned: int) -> None:
        """Release reserved bytes: the outputs were written, or not."""
        with self.lock:
            self.reserve_locked(quota, -size, -pinned)
