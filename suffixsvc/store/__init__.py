"""The durable log of outputs: LMDB for folders, memory for everything else.

Names are resolved on first use, so that a cache in memory does not load lmdb.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suffixsvc.store.lmdb_store import LmdbStore
    from suffixsvc.store.memory_store import MemoryStore

__all__ = ["LmdbStore", "MemoryStore"]

_WHERE = {"LmdbStore": "suffixsvc.store.lmdb_store", "MemoryStore": "suffixsvc.store.memory_store"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
