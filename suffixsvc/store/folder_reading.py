"""Reading of a data folder that no process has open, without changing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from suffixsvc.store.lmdb_log.environment import Environment
from suffixsvc.store.transactions.read_view import ReadView


@contextmanager
def reading(folder: Path) -> Iterator[ReadView]:
    """Open one read of the whole folder, with the checks of an open (docs/format.md).

    It is not upgraded, and unfinished appends and deletions stay. A commit that failed is undone first, as by
    every open, if its journal requires that.

    Raises:
        StoreLockedError, StoreForeignError, StoreCorruptError, StoreError: as of the store.
    """
    environment = Environment(
        str(folder.absolute()),
        map_bytes_initial=0,
        map_bytes_cap=1 << 60,
        sync=True,
        created_us=0,
        migrate=None,
        sync_point=lambda _name: None,
    )
    try:
        with environment.read() as view:
            yield view
    finally:
        environment.close()
