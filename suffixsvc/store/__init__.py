"""The durable log of outputs: in an LMDB folder, or in memory.

Names are imported on first use, so that a cache in memory does not load lmdb.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suffixsvc.store.lmdb_store import LmdbStore
    from suffixsvc.store.memory_store import MemoryStore

__all__ = ["LmdbStore", "MemoryStore"]


def __getattr__(name: str) -> Any:
    modules = {"LmdbStore": "lmdb_store", "MemoryStore": "memory_store"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
