"""The parts of an open cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffixsvc import store as stores
from suffixsvc.config import Limits
from suffixsvc.core import new_learner
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.deleter import Deleter
from suffixsvc.engine.limits.quota_manager import QuotaManager
from suffixsvc.engine.live_sessions import LiveSessions
from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.engine.outputs.output_log import OutputLog
from suffixsvc.engine.publishing.files import PublishedFiles
from suffixsvc.engine.publishing.publisher import Publisher
from suffixsvc.engine.sealing.eraser import Eraser
from suffixsvc.engine.sealing.maintenance import Maintenance
from suffixsvc.engine.sealing.sealer import Sealer
from suffixsvc.errors import InvalidConfigError
from suffixsvc.policies import Policies
from suffixsvc.runtime.sync_points import SyncPoint, with_sync_points
from suffixsvc.store.base import Store


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an open cache, which its namespaces share."""

    store: Store
    close_guard: CloseGuard
    catalog: Catalog
    outputs: OutputLog
    quotas: QuotaManager
    sessions: LiveSessions
    deleter: Deleter
    eraser: Eraser
    publisher: Publisher
    #: the log, for readers that follow it
    feed: LogFeed
    #: None in a cache in memory, which has no segments
    maintenance: Maintenance | None
    #: ends the background threads; also called when neither the cache nor a handle or session of it is left
    stop_threads: weakref.finalize[Any, LiveSessions]

    @contextmanager
    def exclusive(self) -> Iterator[Sealer | None]:
        """Block moves of outputs by other threads (``Maintenance.work``)."""
        if self.maintenance is None:
            yield None
            return
        with self.maintenance.work() as sealer:
            self.close_guard.require_open()
            yield sealer


def open_parts(
    path: str | Path | None,
    *,
    limits: Limits,
    progress: Callable[[int, int], None] | None,
    starting_weights: bytes | None,
    policies: Policies,
    background: bool,
    migrate: bool,
    ids_from_clock: bool,
    sync_point: SyncPoint | None,
) -> EngineParts:
    """Open a data folder, or a store in memory, and everything that works on it. See ``SuffixCache``.

    Args:
        sync_point: called at the sync points of the engine and the store; None: none is.
    """
    new_learner(starting_weights)  # validated here rather than at the first namespace
    store = _open_store(path, limits, migrate, ids_from_clock, sync_point)
    at_point = _no_sync_point if sync_point is None else sync_point
    try:
        close_guard = CloseGuard()
        catalog = Catalog(store, policies, limits, starting_weights)
        outputs = OutputLog(store, catalog, close_guard, limits, at_point)
        sessions = LiveSessions(close_guard, catalog, outputs, limits)
        sealer = None if store.segment_folder is None else Sealer(store, limits.seal_tokens, at_point)
        if sealer is not None:
            indexes = catalog.recover()
            sealer.loader.open_all(indexes, progress)
            for index in indexes:
                outputs.quotas.usage.refresh(index)
        eraser = Eraser(store, catalog, sealer, outputs.finish_removals, at_point)
        maintenance = None
        if sealer is not None:
            maintenance = Maintenance(
                sealer, catalog, limits.seal_tokens, outputs.finish_removals, eraser, start=background
            )
        feed = LogFeed(store, catalog, close_guard)
        folder = None if store.segment_folder is None else store.segment_folder.parent
        publisher = Publisher(
            store, catalog, PublishedFiles(folder), feed.wake, at_point, background=background
        )
        return EngineParts(
            store=store,
            close_guard=close_guard,
            catalog=catalog,
            outputs=outputs,
            quotas=outputs.quotas,
            sessions=sessions,
            deleter=Deleter(store, catalog, close_guard, outputs, sessions, publisher),
            eraser=eraser,
            publisher=publisher,
            feed=feed,
            maintenance=maintenance,
            # runs before the store's finalizer
            stop_threads=weakref.finalize(sessions, _stop_threads, publisher, maintenance),
        )
    except BaseException:
        store.close()
        raise


def _open_store(
    path: str | Path | None,
    limits: Limits,
    migrate: bool,
    ids_from_clock: bool,
    sync_point: SyncPoint | None,
) -> Store:
    if path is None:
        return stores.MemoryStore(limit_bytes=limits.max_store_bytes)
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise InvalidConfigError(
            "path must be the path of a data folder, or None for memory only", got=repr(path)[:80]
        )
    store_class = stores.LmdbStore
    if sync_point is not None:
        store_class = with_sync_points(store_class, sync_point)
    return store_class(
        path,
        limit_bytes=limits.max_store_bytes,
        grace_seconds=limits.expiry_grace_seconds,
        migrate=migrate,
        lsns_from_clock=ids_from_clock,
    )


def _stop_threads(publisher: Publisher, maintenance: Maintenance | None) -> None:
    publisher.stop()
    if maintenance is not None:
        maintenance.stop()


def _no_sync_point(_name: str) -> None:
    pass
