"""Statistics of a whole cache."""

from __future__ import annotations

from dataclasses import dataclass

from suffixsvc.index import NamespaceStats


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats(NamespaceStats):
    """Sums of :class:`NamespaceStats` over all namespaces, and statistics of the store.

    ``limit_bytes`` is the limit of the whole cache, Limits.max_cache_bytes; ``sessions`` and
    ``session_bytes`` include the live sessions of deleted namespaces. ``min_principals`` is 0,
    ``last_published`` the latest.
    """

    namespaces: int
    store_bytes: int
    last_lsn: int
    expiry_grace_seconds: float  #: remainder of the grace period of expiry, see suffixsvc.clock
    store_reopened: int  #: times that the store was opened again after an I/O error
    store_defects: int  #: unexpected exceptions in the store's thread; each is logged
    store_queue: int  #: operations that wait for the store's thread
    erasure_due: bool  #: deleted outputs are still to be erased from the disk
