"""Set of digests in bounded memory, used to find duplicate responses."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from suffixsvc.errors import StoreError, StoreFullError

#: The file is temporary: no journal, no sync, one transaction without end. Pages that the cache cannot hold
#: are written to it.
_CREATE: Final = """
    pragma journal_mode = off;
    pragma synchronous = off;
    pragma cache_size = -{kib};
    begin;
    create table digests (digest blob primary key) without rowid;
"""


class DigestSet:
    """Set of digests in a temporary SQLite file. Not thread-safe.

    Args:
        path: the file; an existing one of a killed build is replaced.
        memory_bytes: memory limit of the digests.

    Raises:
        StoreError: the file cannot be written.
    """

    def __init__(self, path: Path, memory_bytes: int) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        # read by one thread at a time, but not by the same one
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._file.executescript(_CREATE.format(kib=max(64, memory_bytes >> 10)))
        except sqlite3.Error as error:
            raise self._error(error) from None

    def add(self, digest: bytes) -> bool:
        """Add a digest; return whether it is new. StoreError, StoreFullError: the file cannot be written."""
        try:
            return self._file.execute("insert or ignore into digests values (?)", (digest,)).rowcount > 0
        except sqlite3.Error as error:
            raise self._error(error) from None

    def close(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _error(self, error: sqlite3.Error) -> StoreError:
        kind = StoreFullError if error.sqlite_errorcode == sqlite3.SQLITE_FULL else StoreError
        return kind(f"cannot write to {self._path}", got=error)
