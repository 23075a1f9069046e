"""The parts of an LMDB store that tests reach into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffixsvc.store.base import Store
    from suffixsvc.store.lmdb_log.environment import Environment
    from suffixsvc.store.lmdb_log.store_thread import StoreThread


@dataclass(frozen=True, slots=True)
class StoreParts:
    """An open store's environment and thread."""

    environment: Environment
    thread: StoreThread

    def queued(self) -> int:
        """Return the number of small operations that wait for the thread."""
        return len(self.thread._queue._small)


def store_parts_of(store: Store) -> StoreParts:
    """Return the parts of a store that is an LmdbStore."""
    return StoreParts(*(getattr(store, name) for name in ("_log", "_thread")))
