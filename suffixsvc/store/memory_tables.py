"""The databases of an in-memory store: sorted keys, and transactions that can be aborted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final

from suffixsvc.store.transactions.tables import SCHEMAS, Database

#: keys of a block; more are split
_BLOCK_KEYS: Final = 1024


class _SortedRows:
    """Rows of one database: a dictionary, and its keys in order, in blocks of bounded length."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._blocks: list[list[bytes]] = []

    def set(self, key: bytes, value: bytes | None) -> bytes | None:
        """Write a row, or delete it (None); return the value before."""
        before = self.values.pop(key, None)
        if value is not None:
            self.values[key] = value
        if (before is None) != (value is None):
            self._change_keys(key, is_new=before is None)
        return before

    def _change_keys(self, key: bytes, *, is_new: bool) -> None:
        if not self._blocks:
            self._blocks.append([])
        at = self._block_of(key)
        block = self._blocks[at]
        if is_new:
            insort(block, key)
        else:
            del block[bisect_left(block, key)]
        half = len(block) // 2
        if not block:
            del self._blocks[at]
        elif len(block) > _BLOCK_KEYS:
            self._blocks[at : at + 1] = block[:half], block[half:]

    def _block_of(self, key: bytes) -> int:
        """Return the index of the block that has the key, or to which it belongs."""
        return bisect_right(self._blocks, key, lo=1, key=lambda block: block[0]) - 1

    def keys(self, first: bytes) -> Iterator[bytes]:
        """Iterate over the keys >= ``first``, in order."""
        for block in self._blocks[self._block_of(first) :]:
            yield from block[bisect_left(block, first) :]


class MemoryTables:
    """The databases, with one transaction at a time. Not thread-safe.

    Attributes:
        txn: number of the last transaction, or of the one that is open.
        bytes: of all keys and values but those of ``meta``.
    """

    def __init__(self) -> None:
        self._databases = {name: _SortedRows() for name in SCHEMAS}
        #: (database, key, value before) of the writes of the open transaction
        self._undo: list[tuple[Database, bytes, bytes | None]] = []
        self.txn = 0
        self.bytes = 0

    def begin(self) -> None:
        """Begin a transaction."""
        self.txn += 1

    def commit(self) -> None:
        """Make the writes of the open transaction final."""
        self._undo.clear()

    def abort(self) -> None:
        """Undo the writes of the open transaction."""
        while self._undo:
            self._set(*self._undo.pop())
        self.txn -= 1

    def _set(self, database: Database, key: bytes, value: bytes | None) -> None:
        before = self._databases[database].set(key, value)
        if database != "meta":
            self.bytes += _row_bytes(key, value) - _row_bytes(key, before)

    def _write(self, database: Database, key: bytes, value: bytes | None) -> None:
        self._undo.append((database, key, self._databases[database].values.get(key)))
        self._set(database, key, value)

    def has(self, database: Database) -> bool:
        """Whether there is a database."""
        return database in self._databases

    def get(self, database: Database, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._databases[database].values.get(key)

    def keys(self, database: Database, first: bytes = b"", last: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the keys in ``first`` .. ``last``, in order."""
        for key in self._databases[database].keys(first):
            if last is not None and key > last:
                return
            yield key

    def rows(
        self, database: Database, first: bytes = b"", last: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values in the same range."""
        values = self._databases[database].values
        return ((key, values[key]) for key in self.keys(database, first, last))

    def entries(self, database: Database) -> int:
        """Return the number of rows."""
        return len(self._databases[database].values)

    def put(self, database: Database, key: bytes, value: bytes) -> None:
        """Write one row."""
        self._write(database, key, value)

    def drop(self, database: Database, key: bytes) -> None:
        """Delete one row, if it exists."""
        self._write(database, key, None)


def _row_bytes(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
