"""The databases of a store, as one transaction sees them. Implemented over LMDB and in memory.

namespaces    path                  -> number, fingerprint, whether it is being deleted
log           LSN                   -> one output, refers to a payload      (authoritative)
payloads      namespace, hash, slot -> token ids and run lengths, once
refs          namespace, hash, slot -> number of log rows that refer to the payload
by_namespace  namespace, LSN        -> nothing    (index of log)
expiry        expiry time, LSN      -> nothing    (index of log rows with a TTL)
state         namespace, name       -> a blob
segments      namespace, first LSN  -> a segment file and its range of the log
tombstones    namespace, LSN        -> a deleted row that a segment still holds
uuids         namespace, uuid       -> LSN        (index of log rows with a chosen uuid)
incomplete    session id, LSN       -> nothing    (index of incomplete log rows of named sessions)
pending       first LSN             -> rows of an unfinished append
deletions     LSN                   -> the output or namespace that was deleted, of the newest deletions
principals    number                -> name of a writer of outputs
meta          "schema", "counters", "clock", "node", "history", "erasure"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, Protocol, get_args

Database = Literal[
    "meta",
    "namespaces",
    "log",
    "payloads",
    "refs",
    "by_namespace",
    "expiry",
    "state",
    "segments",
    "tombstones",
    "uuids",
    "incomplete",
    "pending",
    "deletions",
    "principals",
]

#: databases of later schemas than the first
_ADDED: Final = {
    "segments": 2,
    "tombstones": 2,
    "uuids": 3,
    "incomplete": 3,
    "pending": 3,
    "deletions": 4,
    "principals": 5,
}
#: all databases, and the schema of folders that added each
SCHEMAS: Final[Mapping[Database, int]] = {name: _ADDED.get(name, 1) for name in get_args(Database)}


class Tables(Protocol):
    """The databases of one transaction. A database that an older folder lacks is empty.

    Iterators end before the next write.
    """

    @property
    def txn(self) -> int:
        """Number of the transaction, or of the last one that it reads."""

    def has(self, database: Database) -> bool:
        """Whether the folder has a database; False in an older folder without room for it."""

    def get(self, database: Database, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""

    def keys(self, database: Database, first: bytes = b"", last: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the keys in ``first`` .. ``last`` (both included; None: to the end), in order."""

    def rows(
        self, database: Database, first: bytes = b"", last: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values in the same range."""

    def entries(self, database: Database) -> int:
        """Return the number of rows."""

    def put(self, database: Database, key: bytes, value: bytes) -> None:
        """Write one row."""

    def drop(self, database: Database, key: bytes) -> None:
        """Delete one row, if it exists."""
