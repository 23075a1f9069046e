"""Least-recently-used order of a namespace's outputs, for eviction.

A table in memory without a store and a clock. One row of 38 bytes per output, in the order of the log:

    id (LSN) | last used: by a draft, else by its write | written | tokens | attribute bytes | principal |
    tail tokens | flags

"Last used" is a time in microseconds that is strictly increasing within an index, so that it also orders
events of the same clock tick. Decode steps do not update it: the core records which texts drafts came from.
The record is read before a write that a limit applies to, before an eviction, before texts move, and by
``SuffixCache.evict``; the drafts in it get the time of the reading.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.index.output_size import OutputSize
from suffixsvc.index.principal_totals import PrincipalTotals, Written
from suffixsvc.types import OutputId

_COLUMNS: Final = {
    "id": "<i8",
    "last_used": "<i8",
    "written": "<i8",
    "tokens": "<u4",
    "attributes": "<u4",
    "principal": "<u4",
    "tail": "u1",
    "flags": "u1",
}
_REMOVED: Final = 1
_PINNED: Final = 2
_OWN_TTL: Final = 4

#: header of the state blob; its grammar is in docs/format.md
_HEAD: Final = struct.Struct("<4sHHI")
_MAGIC: Final = b"SXUS"
_VERSION: Final = 1
#: most recently used outputs that are saved for a restart
_SAVED_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class AverageSize:
    """Average size of a namespace's outputs: bytes per output, per token and per byte of attributes."""

    per_output: float
    per_token: float
    per_attribute_byte: float = 0.0

    def total(self, size: OutputSize) -> float:
        """Estimated bytes of outputs."""
        return (
            size.outputs * self.per_output
            + size.tokens * self.per_token
            + size.attribute_bytes * self.per_attribute_byte
        )


class LruIndex:
    """The outputs of one namespace, ordered by their last use. Thread-safe.

    Args:
        complete: there are no outputs of earlier processes.
        path: of the namespace.
        pinned: its policy pins all outputs.
        totals: counts the outputs of principals in all namespaces; None: they are not counted.

    Attributes:
        eviction_lock: held by the thread that evicts.
        complete: the outputs of earlier processes are in it.
        shrinking: the namespace exceeded its limit and is not back at the low watermark yet.
        dirty: an output was used since the last :meth:`save` that was stored.
    """

    def __init__(
        self,
        *,
        complete: bool = False,
        path: str = "",
        pinned: bool = False,
        totals: PrincipalTotals | None = None,
    ) -> None:
        self.eviction_lock = threading.RLock()
        self.complete = complete
        self.shrinking = False
        self._lock = threading.Lock()
        self._path = path
        self._all_pinned = pinned
        self._totals = totals
        if totals is not None and not complete:
            totals.set_counted(path, False)
        self._rows: dict[str, npt.NDArray[Any]] = {n: np.zeros(64, t) for n, t in _COLUMNS.items()}
        self._count = 0
        self._removed = 0
        self._total = Written()
        #: numbers of principals in the rows, and what each wrote
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._written: list[Written] = []
        #: outputs that were deleted while those of earlier processes are added; None: they are not
        self._deleted: set[OutputId] | None = None
        self._now = 0
        self.dirty = False

    def __len__(self) -> int:
        return self._count - self._removed

    # -------------------------------------------------------------------------------------------- updates

    def add(
        self,
        output_id: OutputId,
        written_us: int,
        size: OutputSize,
        *,
        pinned: bool,
        own_ttl: bool,
        principal: str = "",
        logged: bool = False,
    ) -> None:
        """Add an output, of which the write is the last use.

        Args:
            written_us: time of the write.
            size: of this output.
            pinned: it is part of a pinned corpus and never evicted.
            own_ttl: it was written with a time to live, so that the policy's does not apply.
            principal: who wrote it.
            logged: the log held it at the opening.
        """
        with self._lock:
            if logged and self._deleted is not None and output_id in self._deleted:
                return
            last_used = written_us if logged else self._tick(written_us)
            self._now = max(self._now, last_used)
            flags = _PINNED * pinned | _OWN_TTL * own_ttl
            self._add(output_id, last_used, written_us, size, self._number_of(principal), flags)

    def begin_load(self) -> None:
        """Begin to add the outputs of earlier processes; those that are deleted meanwhile are left out."""
        with self._lock:
            self._deleted = set()

    def end_load(self) -> None:
        """All outputs of earlier processes were added."""
        with self._lock:
            self._deleted = None
            self.complete = True
            if self._totals is not None:
                self._totals.set_counted(self._path, True)

    def set_pinned(self, pinned: bool) -> None:
        """The policy pins all outputs of the namespace, or no longer does."""
        with self._lock:
            if pinned == self._all_pinned:
                return
            before = {name: self._as_counted(number) for name, number in self._numbers.items()}
            self._all_pinned = pinned
            if self._totals is not None:
                for name, number in self._numbers.items():
                    change = self._as_counted(number)
                    change.add(before[name], -1)
                    holds = bool(self._written[number].all.outputs)
                    self._totals.add(name, self._path, change, 1, holds=holds)

    def leave_totals(self) -> None:
        """Take all outputs out of the totals of their principals, for good: the namespace is deleted."""
        with self._lock:
            totals, self._totals = self._totals, None
            if totals is not None:
                totals.set_counted(self._path, True)
                for name, number in self._numbers.items():
                    totals.add(name, self._path, self._as_counted(number), -1, holds=False)

    def _as_counted(self, number: int) -> Written:
        written = self._written[number]
        return Written(written.all, written.all if self._all_pinned else written.pinned)

    def _number_of(self, principal: str) -> int:
        number = self._numbers.setdefault(principal, len(self._written))
        if number == len(self._written):
            self._written.append(Written())
            self._names.append(principal)
        return number

    def remove(self, output_ids: Iterable[OutputId]) -> None:
        """Remove deleted outputs. Unknown ids are ignored."""
        with self._lock:
            for output_id in output_ids:
                if self._deleted is not None:
                    self._deleted.add(output_id)
                row = self._find(output_id)
                if row is None:
                    continue
                self._add_up(-1, self._size(row), int(self._rows["principal"][row]), self._rows["flags"][row])
                self._rows["flags"][row] |= _REMOVED
                self._removed += 1
            if self._removed > 64 + self._count // 2:
                live = self._live(0)
                self._count, self._removed = len(live["id"]), 0
                self._rows = live
                self._grow()

    def touch(self, output_ids: Iterable[OutputId], now_us: int) -> None:
        """Record outputs that drafts were taken from, oldest use first. Unknown ids are ignored."""
        with self._lock:
            for output_id in output_ids:
                row = self._find(output_id)
                if row is not None:
                    self._rows["last_used"][row] = self._tick(now_us)
                    self.dirty = True

    # -------------------------------------------------------------------------------------------- queries

    def idle_seconds(self, output_ids: Sequence[OutputId], now_us: int) -> list[float]:
        """Seconds since the last use of those of these outputs that are in the index."""
        with self._lock:
            rows = [row for row in map(self._find, output_ids) if row is not None]
            return [max(0, now_us - int(self._rows["last_used"][row])) / 1e6 for row in rows]

    @property
    def size(self) -> OutputSize:
        """Size of all outputs."""
        return self._total.all

    @property
    def pinned(self) -> OutputSize:
        """Size of those that are never evicted."""
        return self._total.pinned

    def least_recently_used(
        self, need: float, size: AverageSize, max_outputs: int, max_tokens: int
    ) -> list[OutputId]:
        """The least recently used outputs, as many as take ``need`` bytes together.

        Args:
            size: estimates the bytes of an output.
            max_outputs, max_tokens: limits of the result; one output is returned in any case.
        """
        with self._lock:
            rows = self._live(_PINNED)
            last_used = rows["last_used"]
            if not len(last_used):
                return []
            oldest = np.arange(len(last_used))
            if len(last_used) > max_outputs:
                oldest = np.flatnonzero(
                    last_used <= np.partition(last_used, max_outputs - 1)[max_outputs - 1]
                )
            # ties are in the order of the log
            chosen = oldest[np.argsort(last_used[oldest], kind="stable")][:max_outputs]
            tokens = np.cumsum(rows["tokens"][chosen], dtype=np.int64)
            attributes = np.cumsum(rows["attributes"][chosen], dtype=np.int64)
            taken = np.arange(1, len(chosen) + 1) * size.per_output + tokens * size.per_token
            taken = taken + attributes * size.per_attribute_byte
            enough = int(np.searchsorted(taken, need)) + 1
            fits = max(1, int(np.searchsorted(tokens, max_tokens, "right")))
            return [int(i) for i in rows["id"][chosen[: min(enough, fits)]]]

    def oldest_of(self, principal: str, limit: int) -> list[tuple[int, OutputId, OutputSize]]:
        """At most ``limit`` outputs of a principal, the least recently used first: (last used in
        microseconds, id, size) of each. Pinned ones are left out."""
        with self._lock:
            number = self._numbers.get(principal)
            if number is None:
                return []
            count = self._count
            own = (self._rows["principal"][:count] == number) & (
                self._rows["flags"][:count] & (_REMOVED | _PINNED) == 0
            )
            rows = np.flatnonzero(own)
            last_used = self._rows["last_used"][rows]
            if len(rows) > limit:
                near = last_used <= np.partition(last_used, limit - 1)[limit - 1]
                rows, last_used = rows[near], last_used[near]
            chosen = np.argsort(last_used, kind="stable")[:limit]
            ids = self._rows["id"][rows[chosen]].tolist()
            return list(zip(last_used[chosen].tolist(), ids, map(self._size, rows[chosen]), strict=True))

    def expired(self, written_before_us: int, limit: int, after: OutputId = 0) -> list[OutputId]:
        """At most ``limit`` outputs without their own TTL that were written at or before that time.

        Args:
            after: only ids above this one.
        """
        with self._lock:
            rows = self._live(_PINNED | _OWN_TTL)
            chosen = (rows["written"] <= written_before_us) & (rows["id"] > after)
            return [int(i) for i in rows["id"][chosen][:limit]]

    # ---------------------------------------------------------------------------------------- persistence

    def save(self) -> bytes:
        """The last uses as a state blob, for :meth:`load` after a restart."""
        with self._lock:
            rows = self._live(0)
            used = np.flatnonzero(rows["last_used"] > rows["written"])
            if len(used) > _SAVED_ROWS:
                used = np.sort(used[np.argsort(rows["last_used"][used], kind="stable")[-_SAVED_ROWS:]])
            self.dirty = False
            head = _HEAD.pack(_MAGIC, _VERSION, 0, len(used))
            return head + rows["id"][used].tobytes() + rows["last_used"][used].tobytes()

    def load(self, saved: bytes) -> bool:
        """Apply a blob of :meth:`save`; False, without a change, if it is not one of this version."""
        if len(saved) < _HEAD.size:
            return False
        magic, version, flags, count = _HEAD.unpack_from(saved)
        if (magic, version, flags) != (_MAGIC, _VERSION, 0) or len(saved) != _HEAD.size + 16 * count:
            return False
        ids = np.frombuffer(saved, "<i8", count, _HEAD.size)
        times = np.frombuffer(saved, "<i8", count, _HEAD.size + 8 * count)
        with self._lock:
            for output_id, last_used in zip(ids.tolist(), times.tolist(), strict=True):
                row = self._find(output_id)
                # uses since the opening are newer than the saved ones
                if row is not None and last_used > self._rows["last_used"][row]:
                    self._rows["last_used"][row] = last_used
                    self._now = max(self._now, last_used)
        return True

    # ------------------------------------------------------------------------------------------- internal

    def _tick(self, now_us: int) -> int:
        self._now = max(self._now + 1, now_us)
        return self._now

    def _add(
        self,
        output_id: OutputId,
        last_used: int,
        written: int,
        size: OutputSize,
        principal: int,
        flags: int,
    ) -> None:
        at = self._lower_bound(output_id)
        if at < self._count and self._rows["id"][at] == output_id:
            return
        if self._count == len(self._rows["id"]):
            self._grow()
        size = size._replace(tokens=min(size.tokens, 2**32 - 1))
        fields = (size.tokens, size.attribute_bytes, principal, size.tail_tokens, flags)
        row = dict(zip(_COLUMNS, (output_id, last_used, written, *fields), strict=True))
        for name, column in self._rows.items():
            if at < self._count:  # commits of several threads arrive slightly out of order
                column[at + 1 : self._count + 1] = column[at : self._count].copy()
            column[at] = row[name]
        self._count += 1
        self._add_up(1, size, principal, flags)

    def _add_up(self, sign: int, size: OutputSize, principal: int, flags: int) -> None:
        pinned = bool(flags & _PINNED)
        written = self._written[principal]
        written.count(sign, size, pinned=pinned)
        self._total.count(sign, size, pinned=pinned)
        if self._totals is not None:
            change = Written(size, size if pinned or self._all_pinned else OutputSize())
            holds = bool(written.all.outputs)
            self._totals.add(self._names[principal], self._path, change, sign, holds=holds)

    def _size(self, row: int) -> OutputSize:
        columns = (self._rows[name] for name in ("tokens", "tail", "attributes"))
        return OutputSize(1, *(int(column[row]) for column in columns))

    def _grow(self) -> None:
        more = max(64, self._count // 2)
        self._rows = {
            name: np.concatenate([column[: self._count], np.zeros(more, column.dtype)])
            for name, column in self._rows.items()
        }

    def _lower_bound(self, output_id: OutputId) -> int:
        return int(np.searchsorted(self._rows["id"][: self._count], output_id))

    def _find(self, output_id: OutputId) -> int | None:
        at = self._lower_bound(output_id)
        if at == self._count or self._rows["id"][at] != output_id:
            return None
        return None if self._rows["flags"][at] & _REMOVED else at

    def _live(self, without: int) -> dict[str, npt.NDArray[Any]]:
        """A copy of the rows that are not removed and have none of the flags ``without``."""
        live = np.flatnonzero(self._rows["flags"][: self._count] & (_REMOVED | without) == 0)
        return {name: column[live] for name, column in self._rows.items()}
