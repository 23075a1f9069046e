"""What writers were told about their writes, and the comparison with what a log holds.

Every output has a key, and its tokens follow from the key: a row of the log names the write that made it, and
a token that no writer wrote is recognised. A write is in one of three conditions:

    acknowledged    there, whole, once, under the id of the acknowledgement, until its deletion begins
    begun           there as a whole or not at all; the outputs of one message together
    deleted         not there, once the deletion is acknowledged; before that, either
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from suffixsvc.types import StoredOutput, TokenArray

#: namespaces that are written to
PATHS = ("crash/a", "crash/b")
#: most tokens of an output; the first token of the output with key k is k * WIDTH
WIDTH = 64


@dataclass(slots=True)
class Write:
    """One output.

    Attributes:
        path: its namespace.
        length: number of its tokens when it is complete.
        message: outputs with the same number were sent in one message.
        session: written by a session, which may be committed as incomplete when the service drains.
    """

    path: str
    length: int
    message: int
    session: bool
    output_id: int | None = None
    deleting: bool = False
    deleted: bool = False
    discarded: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One output of a log."""

    output_id: int
    path: str
    tokens: tuple[int, ...]
    incomplete: bool

    @classmethod
    def of(cls, stored: StoredOutput) -> Row:
        output = stored.output
        return cls(stored.output_id, output.namespace, tuple(output.token_ids.tolist()), output.incomplete)


@dataclass(frozen=True, slots=True)
class Moment:
    """What was acknowledged at one moment: lower bounds for every later state of the log."""

    stored: frozenset[int]
    deleted: frozenset[int]


class WriteRecord:
    """The writes of all writers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys = count(1)
        self._messages = count(1)
        self.writes: dict[int, Write] = {}

    def begin(self, path: str, lengths: Sequence[int], *, session: bool = False) -> list[int]:
        """Enter outputs that are about to be sent in one message; their keys."""
        with self._lock:
            message = next(self._messages)
            keys = [next(self._keys) for _ in lengths]
            for key, length in zip(keys, lengths, strict=True):
                assert 0 < length <= WIDTH
                self.writes[key] = Write(path, length, message, session)
            return keys

    def acknowledge(self, keys: Sequence[int], ids: Sequence[int]) -> None:
        with self._lock:
            for key, output_id in zip(keys, ids, strict=True):
                known = self.writes[key].output_id
                assert known in (None, output_id), f"key {key} was stored as {known} and as {output_id}"
                self.writes[key].output_id = output_id

    def discard(self, key: int) -> None:
        with self._lock:
            self.writes[key].discarded = True

    def refuse(self, keys: Sequence[int]) -> None:
        """Enter that a write was refused with an error that says that nothing was stored."""
        with self._lock:
            for key in keys:
                self.writes[key].refused = True

    def begin_deletion(self, keys: Sequence[int]) -> None:
        with self._lock:
            for key in keys:
                self.writes[key].deleting = True

    def acknowledge_deletion(self, keys: Sequence[int]) -> None:
        with self._lock:
            for key in keys:
                self.writes[key].deleted = True

    def moment(self) -> Moment:
        with self._lock:
            return Moment(
                frozenset(key for key, write in self.writes.items() if write.output_id is not None),
                frozenset(key for key, write in self.writes.items() if write.deleted),
            )

    def stored_ids(self, path: str) -> set[int]:
        """Ids of acknowledged outputs whose deletion has not begun."""
        with self._lock:
            return {
                write.output_id
                for write in self.writes.values()
                if write.output_id is not None and not write.deleting and write.path == path
            }

    def counts(self) -> Mapping[str, int]:
        with self._lock:
            writes = self.writes.values()
            return {
                "acknowledged": sum(write.output_id is not None for write in writes),
                "deleted": sum(write.deleted for write in writes),
                "unanswered": sum(write.output_id is None and not write.discarded for write in writes),
            }

    def compare(self, rows: Sequence[Row], at_least: Moment | None = None) -> None:
        """Compare with a log: one that no process writes to, or a backup that was begun after ``at_least``.

        Raises:
            AssertionError: something acknowledged is missing, is there twice or differs; something is there
                that was never sent; a message is there in part; something deleted is there.
        """
        moment = self.moment() if at_least is None else at_least
        with self._lock:
            found = {key_of(row): row for row in rows if not row.incomplete}
            times = Counter(key_of(row) for row in rows if not row.incomplete)
            assert not (twice := [key for key, n in times.items() if n > 1]), f"stored twice: {twice[:9]}"
            for row in rows:
                self._require_own(row)
                if at_least is None and row.incomplete:
                    write = self.writes[key_of(row)]
                    assert write.output_id is None, (
                        f"incomplete, and its close was acknowledged: {row}, {write}"
                    )
            for key in moment.stored:
                write = self.writes[key]
                if key not in found:
                    assert write.deleting, f"acknowledged and lost: key {key}, {write}"
                else:
                    got = found[key].output_id
                    assert got == write.output_id, f"key {key} must have id {write.output_id}, got {got}"
            assert not (back := moment.deleted & found.keys()), f"deleted and back: {sorted(back)[:9]}"
            self._require_whole_messages(found)

    def _require_own(self, row: Row) -> None:
        """Assert that a row is what one of the writers wrote."""
        key = key_of(row)
        write = self.writes.get(key)
        assert write is not None, f"invented: {row}"
        assert row.path == write.path, f"in another namespace: {row}, {write}"
        assert row.tokens == tuple(tokens_of(key, len(row.tokens)).tolist()), f"invented tokens: {row}"
        if row.incomplete:
            assert write.session, f"incomplete, and not of a session: {row}"
            assert len(row.tokens) <= write.length, f"too long: {row}, {write}"
        else:
            assert len(row.tokens) == write.length, f"not whole: {row}, {write}"
            assert not write.discarded, f"discarded and there: {row}"
            assert not write.refused, f"refused and there: {row}"
            known = write.output_id
            assert known in (None, row.output_id), f"id {row.output_id} is not the acknowledged one, {known}"

    def _require_whole_messages(self, found: Mapping[int, Row]) -> None:
        present, absent = Counter[int](), Counter[int]()
        for key, write in self.writes.items():
            if not write.deleting:
                (present if key in found else absent)[write.message] += 1
        torn = present.keys() & absent.keys()
        assert not torn, f"messages that are there in part: {sorted(torn)[:9]}"


def tokens_of(key: int, length: int) -> TokenArray:
    """The first tokens of the output with a key."""
    return np.arange(key * WIDTH, key * WIDTH + length, dtype=np.int32)


def key_of(row: Row) -> int:
    """The key of the output that a row is."""
    return row.tokens[0] // WIDTH
