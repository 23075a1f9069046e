"""Set of digests in bounded memory, used to find duplicate responses."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import lmdb

from suffixsvc.errors import StoreError, StoreFullError
from suffixsvc.store.transactions.lmdb_errors import is_out_of_space

__all__ = ["DigestSet"]

#: memory of a digest in a set: the bytes object and its slot
_DIGEST_BYTES: Final = 100
_MAP_BYTES: Final = 1 << 40  # address space only; the file grows on demand


class DigestSet:
    """Set of 16-byte digests: in memory up to a limit, then spilled to an LMDB file.

    Args:
        folder: folder of the file, created on the first spill.
        memory_bytes: memory limit of the digests.
    """

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._folder = folder
        self._max_in_memory = max(1024, memory_bytes // _DIGEST_BYTES)
        self._in_memory: set[bytes] = set()
        self._file: lmdb.Environment | None = None

    def add(self, digest: bytes) -> bool:
        """Add a digest; return whether it is new. StoreError, StoreFullError: the file cannot be written."""
        if digest in self._in_memory:
            return False
        if self._file is not None:
            with self._file.begin() as reading:
                if reading.get(digest) is not None:
                    return False
        self._in_memory.add(digest)
        if len(self._in_memory) >= self._max_in_memory:
            try:
                self._spill()
            except lmdb.Error as error:
                kind = StoreFullError if is_out_of_space(error, str(self._folder)) else StoreError
                raise kind(f"cannot write to {self._folder}", got=error) from None
        return True

    def close(self) -> None:
        """Close the file and clear the set."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._in_memory.clear()

    def _spill(self) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not synced: the file is temporary, and a resumed build fills it again.
            self._file = lmdb.open(
                str(self._folder), map_size=_MAP_BYTES, sync=False, metasync=False, lock=False
            )
            with self._file.begin(write=True) as writing:
                writing.drop(self._file.open_db(), delete=False)
        with self._file.begin(write=True) as writing:
            for digest in sorted(self._in_memory):
                writing.put(digest, b"")
        self._in_memory.clear()
