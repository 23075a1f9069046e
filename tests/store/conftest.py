"""Fixtures of the store's tests: each runs a test with both stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_testing import NS, Clock

from suffixsvc.errors import StoreClosedError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.lmdb_store import MIN_LIMIT_BYTES
from suffixsvc.types import NamespaceRecord


@pytest.fixture
def clock() -> Clock:
    """The clock of ``store``."""
    return Clock()


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """An open store with one namespace; checked at the end of every test."""
    opened: Store
    if request.param == "lmdb":
        opened = LmdbStore(tmp_path / "data", clock=clock)
    else:
        opened = MemoryStore(clock=clock)
    opened.add_namespace(NamespaceRecord(NS))
    yield opened
    with contextlib.suppress(StoreClosedError):  # some tests close it themselves
        opened.check()
    opened.close()
    if request.param == "lmdb":
        reopened = LmdbStore(tmp_path / "data")
        reopened.check()
        reopened.close()


@pytest.fixture(params=["lmdb", "memory"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An open store with one namespace and the smallest limit; checked at the end."""
    opened: Store
    if request.param == "lmdb":
        opened = LmdbStore(tmp_path / "data", limit_bytes=MIN_LIMIT_BYTES, sync=False)
    else:
        opened = MemoryStore(limit_bytes=MIN_LIMIT_BYTES)
    opened.add_namespace(NamespaceRecord(NS))
    yield opened
    opened.check()
    opened.close()
