"""Which responses were there already, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import lmdb

from suffixsvc.errors import StoreError, StoreFullError
from suffixsvc.store.environment import is_full

__all__ = ["Seen"]

#: what a hash takes in a set: the bytes object and its slot
_HELD_BYTES: Final = 100
_MAP_BYTES: Final = 1 << 40  # address space only; the file grows with what it holds


class Seen:
    """A set of 16-byte hashes: in memory as long as they are few, then in a file that needs no memory.

    Args:
        folder: where the file goes; nothing is there before it is needed.
        memory_bytes: what the hashes may take in memory.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._folder = folder
        self._most = max(1024, memory_bytes // _HELD_BYTES)
        self._held: set[bytes] = set()
        self._file: lmdb.Environment | None = None

    def add(self, digest: bytes) -> bool:
        """Add a hash; whether it is new. StoreError, StoreFullError: the disk."""
        if digest in self._held:
            return False
        if self._file is not None:
            with self._file.begin() as reading:
                if reading.get(digest) is not None:
                    return False
        self._held.add(digest)
        if len(self._held) >= self._most:
            try:
                self._move()
            except lmdb.Error as error:
                kind = StoreFullError if is_full(error, str(self._folder)) else StoreError
                raise kind(f"cannot write to {self._folder}", got=error) from None
        return True

    def close(self) -> None:
        """Let the file go; it is not read again."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held.clear()

    def _move(self) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # It is thrown away with the work folder and filled anew by a resumed build: nothing to sync.
            self._file = lmdb.open(
                str(self._folder), map_size=_MAP_BYTES, sync=False, metasync=False, lock=False
            )
            with self._file.begin(write=True) as writing:
                writing.drop(self._file.open_db(), delete=False)
        with self._file.begin(write=True) as writing:
            for digest in sorted(self._held):
                writing.put(digest, b"")
        self._held.clear()
