"""The parts of an LMDB store that tests reach into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffixsvc.store.base import Store
    from suffixsvc.store.lmdb_log.environment import Environment
    from suffixsvc.store.lmdb_log.writer import Writer


@dataclass(frozen=True, slots=True)
class StoreParts:
    """An open store's environment and writer."""

    environment: Environment
    writer: Writer

    def queued(self) -> int:
        """Return the number of small operations that wait for the writer."""
        return len(self.writer._queue._small)


def store_parts_of(store: Store) -> StoreParts:
    """Return the parts of a store that is an LmdbStore."""
    return StoreParts(*(getattr(store, name) for name in ("_log", "_writer")))
