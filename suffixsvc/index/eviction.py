"""Who must go first: when each output of a namespace was last drafted from.

Pure bookkeeping, without a store and without a clock. A row an output, 29 bytes, in the order of the log:

    id (LSN) | recent: last drafted from, else when it was written | written | tokens | flags

"Recent" is a time in microseconds that only ever rises within a ledger, so that it also tells apart what
happened within one tick of the clock. Steps pay nothing for it: the core notes which texts drafts came from,
and what it noted is fetched when somebody has to go, or now and then.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.types import OutputId

__all__ = ["Cost", "Ledger"]

_COLUMNS: Final = {"id": "<i8", "recent": "<i8", "written": "<i8", "tokens": "<u4", "flags": "u1"}
_GONE: Final = 1
_STAYS: Final = 2
_OWN_TTL: Final = 4

#: of the state blob; its grammar is in docs/format.md
_HEAD: Final = struct.Struct("<4sHHI")
_MAGIC: Final = b"SXUS"
_VERSION: Final = 1
#: so many of the last used are kept across a restart
_SAVED_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Cost:
    """What an output takes, on average in its namespace: bytes of its own, and bytes for each token."""

    row: float
    token: float

    def of(self, outputs: int, tokens: int) -> float:
        return outputs * self.row + tokens * self.token


class Ledger:
    """The outputs of one namespace by when they were last of use. Thread-safe."""

    def __init__(self) -> None:
        #: held by whoever evicts
        self.turn = threading.RLock()
        #: outputs from before this process are in it
        self.complete = False
        #: past its limit, and not yet back at the lower mark
        self.shrinking = False
        self._lock = threading.Lock()
        self._rows: dict[str, npt.NDArray[Any]] = {n: np.zeros(64, t) for n, t in _COLUMNS.items()}
        self._count = 0
        self._gone = 0
        self._staying = [0, 0]  # outputs, tokens
        self._now = 0
        self._id_of: dict[int, OutputId] = {}  # writer of a text in the hot index -> output
        self._unsaved = False

    def __len__(self) -> int:
        return self._count - self._gone

    # --------------------------------------------------------------------------------------- coming and going

    def kept(self, output_id: OutputId, now_us: int, tokens: int, *, stays: bool, own_ttl: bool) -> None:
        """An output was written just now.

        Args:
            stays: it is part of a pinned corpus.
            own_ttl: it has a time to live of its own.
        """
        with self._lock:
            recent = self._tick(now_us)
            self._add(output_id, recent, now_us, tokens, _STAYS * stays | _OWN_TTL * own_ttl)

    def known(self, output_id: OutputId, written_us: int, tokens: int, *, stays: bool, own_ttl: bool) -> None:
        """An output is in the log since then, and was not used as far as is known."""
        with self._lock:
            self._add(output_id, written_us, written_us, tokens, _STAYS * stays | _OWN_TTL * own_ttl)
            self._now = max(self._now, written_us)

    def written_by(self, writer: int, output_id: OutputId) -> None:
        """The output's text is in the hot index under this writer's number."""
        with self._lock:
            self._id_of[writer] = output_id
            # most of them then belong to outputs that are gone
            if self.complete and len(self._id_of) > 64 + 2 * len(self):
                self._id_of = {w: i for w, i in self._id_of.items() if self._find(i) is not None}

    def sealed(self, output_ids: Iterable[OutputId]) -> None:
        """Outputs left the hot index for a segment: their writers are no more."""
        gone = set(output_ids)
        with self._lock:
            self._id_of = {w: i for w, i in self._id_of.items() if i not in gone}

    def dropped(self, output_ids: Iterable[OutputId]) -> None:
        """Outputs were forgotten, whoever did it. Unknown ones are ignored."""
        with self._lock:
            for output_id in output_ids:
                place = self._find(output_id)
                if place is None:
                    continue
                if self._rows["flags"][place] & _STAYS:
                    self._staying[0] -= 1
                    self._staying[1] -= int(self._rows["tokens"][place])
                self._rows["flags"][place] |= _GONE
                self._gone += 1
            if self._gone > 64 + self._count // 2:
                live = self._live(0)
                self._count, self._gone = len(live["id"]), 0
                self._rows = live
                self._grow()

    def drafted(self, writers: Iterable[int], output_ids: Iterable[OutputId], now_us: int) -> None:
        """Drafts were taken from these texts of the hot index and these sealed outputs, oldest first."""
        with self._lock:
            known = [self._id_of[w] for w in writers if w in self._id_of]
            for output_id in [*known, *output_ids]:
                place = self._find(output_id)
                if place is not None:
                    self._rows["recent"][place] = self._tick(now_us)
                    self._unsaved = True

    # -------------------------------------------------------------------------------------------- who goes

    @property
    def staying(self) -> tuple[int, int]:
        """(outputs, tokens) that are never evicted."""
        with self._lock:
            return self._staying[0], self._staying[1]

    def oldest(self, need: float, cost: Cost, most: int, most_tokens: int) -> list[OutputId]:
        """The outputs that were of use the longest ago, as many as take ``need`` bytes.

        Args:
            most, most_tokens: not more than so many; one in any case.
        """
        with self._lock:
            rows = self._live(_STAYS)
            recent = rows["recent"]
            if not len(recent):
                return []
            nearby = np.arange(len(recent))
            if len(recent) > most:
                nearby = np.flatnonzero(recent <= np.partition(recent, most - 1)[most - 1])
            # equals: in the order of the log
            first = nearby[np.argsort(recent[nearby], kind="stable")][:most]
            tokens = np.cumsum(rows["tokens"][first], dtype=np.int64)
            taken = np.arange(1, len(first) + 1) * cost.row + tokens * cost.token
            enough = int(np.searchsorted(taken, need)) + 1
            fits = max(1, int(np.searchsorted(tokens, most_tokens, "right")))
            return [int(i) for i in rows["id"][first[: min(enough, fits)]]]

    def due(self, written_before_us: int, most: int, after: OutputId = 0) -> list[OutputId]:
        """At most ``most`` outputs without a TTL of their own that were written at or before then, with ids
        beyond ``after``."""
        with self._lock:
            rows = self._live(_STAYS | _OWN_TTL)
            chosen = (rows["written"] <= written_before_us) & (rows["id"] > after)
            return [int(i) for i in rows["id"][chosen][:most]]

    # ------------------------------------------------------------------------------------------- a restart

    @property
    def unsaved(self) -> bool:
        return self._unsaved

    def save(self) -> bytes:
        """When outputs were drafted from, for :meth:`load` after a restart."""
        with self._lock:
            rows = self._live(0)
            used = np.flatnonzero(rows["recent"] > rows["written"])
            if len(used) > _SAVED_ROWS:
                used = np.sort(used[np.argsort(rows["recent"][used], kind="stable")[-_SAVED_ROWS:]])
            self._unsaved = False
            head = _HEAD.pack(_MAGIC, _VERSION, 0, len(used))
            return head + rows["id"][used].tobytes() + rows["recent"][used].tobytes()

    def load(self, saved: bytes) -> bool:
        """Take over what another process saved; False, and nothing changes, if it is none of this version."""
        if len(saved) < _HEAD.size:
            return False
        magic, version, flags, count = _HEAD.unpack_from(saved)
        if (magic, version, flags) != (_MAGIC, _VERSION, 0) or len(saved) != _HEAD.size + 16 * count:
            return False
        ids = np.frombuffer(saved, "<i8", count, _HEAD.size)
        recents = np.frombuffer(saved, "<i8", count, _HEAD.size + 8 * count)
        with self._lock:
            for output_id, recent in zip(ids.tolist(), recents.tolist(), strict=True):
                place = self._find(output_id)
                if place is not None and recent > self._rows["recent"][place]:
                    self._rows["recent"][place] = recent
                    self._now = max(self._now, recent)
        return True

    # --------------------------------------------------------------------------------------------- inside

    def _tick(self, now_us: int) -> int:
        self._now = max(self._now + 1, now_us)
        return self._now

    def _add(self, output_id: OutputId, recent: int, written: int, tokens: int, flags: int) -> None:
        place = self._place(output_id)
        if place < self._count and self._rows["id"][place] == output_id:
            return
        if self._count == len(self._rows["id"]):
            self._grow()
        tokens = min(tokens, 2**32 - 1)
        row = {"id": output_id, "recent": recent, "written": written, "tokens": tokens, "flags": flags}
        for name, column in self._rows.items():
            if place < self._count:  # commits of several threads arrive a little out of order
                column[place + 1 : self._count + 1] = column[place : self._count].copy()
            column[place] = row[name]
        self._count += 1
        if flags & _STAYS:
            self._staying[0] += 1
            self._staying[1] += tokens

    def _grow(self) -> None:
        more = max(64, self._count // 2)
        self._rows = {
            name: np.concatenate([column[: self._count], np.zeros(more, column.dtype)])
            for name, column in self._rows.items()
        }

    def _place(self, output_id: OutputId) -> int:
        return int(np.searchsorted(self._rows["id"][: self._count], output_id))

    def _find(self, output_id: OutputId) -> int | None:
        place = self._place(output_id)
        if place == self._count or self._rows["id"][place] != output_id:
            return None
        return None if self._rows["flags"][place] & _GONE else place

    def _live(self, without: int) -> dict[str, npt.NDArray[Any]]:
        """The rows that are not gone and have none of these flags, copied."""
        live = np.flatnonzero(self._rows["flags"][: self._count] & (_GONE | without) == 0)
        return {name: column[live] for name, column in self._rows.items()}
