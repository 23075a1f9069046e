"""Statistics of a whole cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from suffixsvc.engine.parts import EngineParts
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


def sum_stats(parts: EngineParts, namespaces: Mapping[str, NamespaceStats]) -> CacheStats:
    """Return the sums over ``namespaces``, all of the cache by path, with the statistics of its store.

    Raises:
        SessionClosedError: the cache is closed.
    """
    with parts.close_guard.while_open():
        store = parts.store.stats()
        sums: dict[str, Any] = dict.fromkeys(NamespaceStats.__dataclass_fields__, 0)
        for stats in namespaces.values():
            for name in sums:
                sums[name] += getattr(stats, name)
        sums["min_principals"] = 0
        sums["last_published"] = max((each.last_published for each in namespaces.values()), default=0.0)
        sums["limit_bytes"] = parts.quotas.usage.limit
        sums["sessions"] = sum(index.live_sessions for index in parts.catalog.in_use())
        sums["session_bytes"] = parts.quotas.usage.live_bytes()
        return CacheStats(
            namespaces=len(parts.catalog),
            store_bytes=store.bytes_used,
            last_lsn=store.last_lsn,
            expiry_grace_seconds=store.expiry_grace_seconds,
            store_reopened=store.reopened,
            store_defects=store.defects,
            store_queue=store.queued,
            erasure_due=bool(parts.store.erasure_due()),
            **sums,
        )
