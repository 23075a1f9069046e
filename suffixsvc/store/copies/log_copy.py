"""A copy of a log in a new data file, made while others write to the log, in short reads.

    pages      rows in the order of their LSNs, each page with the deletions since the one before
    the rest   states of the namespaces, and tombstones of the segments that the manifests have now
    pages      of what was written and deleted meanwhile
    the end    what is left, in one short read: the copy is the log as of its last LSN

Every row read is one of the log at that moment; a row that is deleted later has a deletion, which the copy
reads as a follower does (``transactions/changes.py``). So the copy holds neither more nor less than the log
does at its end, and nothing that was forgotten by then. States have no LSN: each is that of some moment of
the copy.

The copy keeps a request to erase deleted texts from the disk. It gets one of its own if it removed rows that
it had copied before: their texts are in its free pages.

The tombstones of a segment only become more while it is in the manifest, one with each deletion: those of the
deletions since they were copied, and those of newer segments, complete them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from suffixsvc.clock import ClockReading
from suffixsvc.errors import StoreError
from suffixsvc.store.copies.new_file import NewDataFile
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.records.framing import corrupt, encode_text
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.scans import Log
from suffixsvc.store.transactions.snapshot import Manifest, Names, Principals
from suffixsvc.store.transactions.tables import Database
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId, SegmentRecord

#: rows of one read, outputs and deletions each, and bytes after which no row is added to it
_ROWS: Final = 256
_BYTES: Final = 4 << 20
_TOMBSTONES: Final = 4096
_STATES: Final = 64
#: LSNs of the last read
_LAST_LSNS: Final = 512
#: after so many pages beyond the end that the log had at first, twice as many: the copy ends in any case
_PATIENCE_PAGES: Final = 64

Rows = list[tuple[bytes, bytes]]


class _Page(NamedTuple):
    """Rows, ids of deleted outputs and their tombstones; LSNs of the log up to which they are complete."""

    rows: list[tuple[log_records.LogRecord, bytes]]
    deleted: list[OutputId]
    tombstones: Rows
    at: OutputId
    seen: OutputId
    left: int


@dataclass(slots=True)
class LogEnd:
    """The state of a log with which its copy ends.

    Attributes:
        lsn: the last LSN.
        manifests: segments by the number of their namespace.
    """

    page: _Page
    names: Names
    counters: table_records.Counters
    manifests: dict[int, Manifest]
    history: table_records.History
    node_id: int
    schema: bytes
    clock: ClockReading | None
    pending: Rows
    states: Rows
    principals: Principals
    #: LSN up to which deleted texts are still to be erased; 0: none
    erasure: OutputId
    #: of the segments that are newer than those whose tombstones were copied
    tombstones: Rows = field(default_factory=list)

    @property
    def lsn(self) -> OutputId:
        """The last LSN of the copy."""
        return self.counters.last_lsn

    def leave_out(self, names: set[str]) -> None:
        """Remove segments from the manifests: their outputs are read from the log."""
        self.manifests = {
            number: tuple(record for record in manifest if record.name not in names)
            for number, manifest in self.manifests.items()
        }

    def segment_names(self) -> set[str]:
        """Return the names of the files in the manifests."""
        return {record.name for manifest in self.manifests.values() for record in manifest}


class LogCopy:
    """Copies a log. For one thread; no read is open between two calls, nor while an iterator waits.

    Args:
        log: the log.
        target: a new file.

    Raises:
        StoreError: the folder has an older schema.
        StoreCorruptError: from every method; a record of the log is damaged.
    """

    def __init__(self, log: Log, target: NewDataFile) -> None:
        self._log, self._target = log, target
        with log.read() as view:
            if not view.tables.has("principals"):
                raise StoreError(
                    "the data folder must have the current schema to be backed up",
                    expected=f"schema {table_records.SCHEMA_VERSION}",
                    got="an older one, which had no room for the upgrade",
                    remedy="Free disk space or raise Limits.max_store_bytes (serve --max-store-gib), and "
                    "open the folder again.",
                )
            #: rows up to here are copied, deletions up to here are applied
            self._at, self._seen = 0, view.counters.last_lsn
            self._first_end = view.counters.last_lsn
            #: outputs of the log at the beginning
            self.outputs = view.counters.outputs
            self._last_number = view.counters.last_namespace_id
        self._numbers: set[int] = set()
        #: whether the copy removed rows or states that it had copied before
        self._removed = False
        #: segments whose tombstones are copied, by their records: a rewritten one may have an earlier name
        self._sealed: set[SegmentRecord] | None = None

    # --- copying ------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[int]:
        """Copy pages of rows until a short read completes them; yields the rows of the copy so far.

        Called again, it goes on with those that were written meanwhile.
        """
        most, pages = _LAST_LSNS, 0
        while True:
            with self._log.read() as view:
                page = self._read(view, limited=True)
            _verify(page)
            self._target.write(partial(self._apply, page=page))
            yield self._target.counters.outputs
            if page.left <= most:
                return
            if self._at > self._first_end:
                pages += 1
                most *= 2 if pages % _PATIENCE_PAGES == 0 else 1

    def rest(self) -> Iterator[int]:
        """Copy states and tombstones, in pages; yields their number so far."""
        with self._log.read() as view:
            self._sealed = {record for manifest in view.manifests.values() for record in manifest}
        copied = 0
        limits: dict[Database, int] = {"state": _STATES, "tombstones": _TOMBSTONES}
        for database, limit in limits.items():
            first = b""
            while rows := self._page_of(database, first, limit):
                self._target.write(partial(put_rows, database=database, rows=rows))
                self._numbers.update(int.from_bytes(key[:4], "big") for key, _ in rows)
                first = rows[-1][0] + b"\0"
                copied += len(rows)
                yield copied

    def end(self) -> LogEnd:
        """Read what completes the copy. No segment may be made or removed before its files are copied."""
        with self._log.read() as view:
            page = self._read(view, limited=False)
            manifests = dict(view.manifests)
            newer = [
                (number, record)
                for number, manifest in manifests.items()
                for record in manifest
                if self._sealed is None or record not in self._sealed
            ]
            return LogEnd(
                page,
                view.names,
                view.counters,
                manifests,
                view.history,
                view.node_id,
                view.tables.get("meta", keys.SCHEMA_KEY) or b"",
                view.clock(),
                list(view.tables.rows("pending")),
                list(view.tables.rows("state", keys.state_key(self._last_number + 1, ""))),
                view.principals,
                view.erasure,
                [
                    row
                    for number, record in newer
                    for row in view.tables.rows(
                        "tombstones",
                        keys.namespace_row_key(number, record.first_lsn),
                        keys.namespace_row_key(number, record.last_lsn),
                    )
                ],
            )

    def complete(self, end: LogEnd) -> None:
        """Complete the copy and its file.

        Raises:
            StoreCorruptError: the copy does not have the totals of the log.
        """
        _verify(end.page)
        names = Names.of({row.namespace_id: row for row in end.names.by_path.values()})
        self._target.write(partial(self._apply, page=end.page))
        self._target.write(partial(put_rows, database="state", rows=end.states))
        self._numbers.update(int.from_bytes(key[:4], "big") for key, _ in end.states)
        for number in sorted(self._numbers - names.by_id.keys()):
            while self._target.write(partial(purge_namespace, number=number)):
                self._removed = True
        if self._removed and not end.erasure:
            end.erasure = max(1, end.lsn)
        self._drop_stale_tombstones(end)
        self._target.write(partial(_put_end, end=end, names=names), end.clock)
        if not end.names.deleting:
            self._target.read(lambda view: _require_totals(view, end.counters))

    # --- reads --------------------------------------------------------------------------------------------

    def _read(self, view: ReadView, *, limited: bool) -> _Page:
        """Read what follows; ``limited``: at most a page of it."""
        self._require_deletions(view)
        last = view.counters.last_lsn
        at = seen = last
        rows: list[tuple[log_records.LogRecord, bytes]] = []
        size = 0
        for lsn in view.lsns(None, self._at + 1, last, _ROWS if limited else None):
            rows.append(view.row(lsn))
            size += len(rows[-1][1])
            if limited and (len(rows) == _ROWS or size >= _BYTES):
                at = lsn
                break
        found = view.tables.rows("deletions", keys.log_key(self._seen + 1))
        deletions = [
            table_records.decode_deletion(raw, key) for key, raw in islice(found, _ROWS if limited else None)
        ]
        if limited and len(deletions) == _ROWS:
            seen = deletions[-1].lsn
        outputs = [deletion for deletion in deletions if deletion.output_id]
        # one of before may be of a segment that was merged since
        tombstones = [
            keys.namespace_row_key(each.namespace_id, each.output_id)
            for each in outputs
            if self._sealed is not None
        ]
        found_tombstones = [(key, view.tables.get("tombstones", key)) for key in tombstones]
        return _Page(
            rows,
            [each.output_id for each in outputs],
            [(key, raw) for key, raw in found_tombstones if raw is not None],
            at,
            seen,
            last - min(at, seen),
        )

    def _require_deletions(self, view: ReadView) -> None:
        if view.history.floor > self._seen:
            raise StoreError(
                "deletions must not outpace a backup",
                expected="fewer than 65,536 between two pages",
                got=f"deletions up to {view.history.floor} dropped, {self._seen} applied",
                remedy="Nothing was written. Back up again.",
            )

    def _page_of(self, database: Database, first: bytes, limit: int) -> Rows:
        rows: Rows = []
        size = 0
        with self._log.read() as view:
            for key, raw in view.tables.rows(database, first):
                rows.append((key, raw))
                size += len(raw)
                if len(rows) == limit or size >= _BYTES:
                    break
        return rows

    # --- writes -------------------------------------------------------------------------------------------

    def _apply(self, view: WriteView, page: _Page) -> None:
        for record, payload in page.rows:
            view.put_row(record, payload)
            self._numbers.add(record.payload.namespace_id)
        for lsn in page.deleted:
            record_or_none = view.log_record(lsn)
            if record_or_none is not None:
                view.remove_row(record_or_none)
                self._removed = True
        put_rows(view, "tombstones", page.tombstones)
        self._at, self._seen = page.at, page.seen

    def _drop_stale_tombstones(self, end: LogEnd) -> None:
        """Drop those of segments that are not in the copy; add those of the newest segments."""
        first = b""
        while True:
            rows = self._target.read(partial(_tombstones_from, first=first))
            if not rows:
                break
            stale = [key for key, raw in rows if not self._is_current(end, key, raw)]
            self._target.write(partial(_drop, database="tombstones", found=stale))
            first = rows[-1][0] + b"\0"
        newest = [(key, raw) for key, raw in end.tombstones if _segment_at(end.manifests, key) is not None]
        self._target.write(partial(put_rows, database="tombstones", rows=newest))

    def _is_current(self, end: LogEnd, key: bytes, raw: bytes) -> bool:
        table_records.decode_tombstone(raw, key)
        return _segment_at(end.manifests, key) in (self._sealed or ())


def _verify(page: _Page) -> None:
    """Verify the payloads of a page, after the read; StoreCorruptError."""
    for record, payload in page.rows:
        log_records.payload_of(record, payload)


def _segment_at(manifests: Mapping[int, Manifest], key: bytes) -> SegmentRecord | None:
    """Return the segment that covers the row of a tombstone's key, or None."""
    number, lsn = int.from_bytes(key[:4], "big"), keys.lsn_of(key)
    return next((record for record in manifests.get(number, ()) if record.covers(lsn)), None)


def _tombstones_from(view: ReadView, first: bytes) -> Rows:
    return list(islice(view.tables.rows("tombstones", first), _TOMBSTONES))


def put_rows(view: WriteView, database: Database, rows: Rows) -> None:
    """Write rows as they are; states are verified. StoreCorruptError."""
    for key, raw in rows:
        if database == "state":
            table_records.decode_state(raw, key)
        view.put(database, key, raw)


def _drop(view: WriteView, database: Database, found: list[bytes]) -> None:
    for key in found:
        view.drop(database, key)


def purge_namespace(view: WriteView, number: int) -> int:
    """Remove rows and states of a namespace that the log does not have any more; return how many."""
    lsns = view.lsns(number, limit=_ROWS)
    for lsn in lsns:
        record = view.log_record(lsn)
        if record is None:
            raise corrupt(f"output {lsn} is in the index of its namespace but not in the log")
        view.remove_row(record)
    prefix = keys.state_key(number, "")
    states = list(islice(view.tables.keys("state", prefix, prefix + b"\xff" * 8), _STATES))
    _drop(view, "state", states)
    return len(lsns) + len(states)


def put_manifests(view: WriteView, names: Names, manifests: Mapping[int, Manifest]) -> None:
    """Write the rows of namespaces, and of their segments, into a new file."""
    for row in names.by_id.values():
        view.put("namespaces", encode_text(row.path), table_records.encode_namespace(row))
    view.names = names
    view.manifests = {number: records for number, records in manifests.items() if records}
    for number, records in view.manifests.items():
        for record in records:
            key = keys.namespace_row_key(number, record.first_lsn)
            view.put("segments", key, table_records.encode_segment(number, record))


def _put_end(view: WriteView, end: LogEnd, names: Names) -> None:
    put_manifests(view, names, end.manifests)
    put_rows(view, "pending", end.pending)
    view.put("meta", keys.SCHEMA_KEY, end.schema)  # with the mark of access control
    view.access_controlled = table_records.decode_schema(end.schema).access_controlled
    view.put_node(end.node_id)
    # no deletion is copied: followers of the log begin again, unless they have all of it
    view.put_history(table_records.History(end.lsn, end.history.runs))
    view.restore_counters(last_lsn=end.lsn, last_namespace_id=end.counters.last_namespace_id)
    for name in end.principals.names:
        view.put_principal(name)
    if end.erasure:  # segments may hold what was deleted
        view.put_erasure(end.erasure)


def _require_totals(view: ReadView, counters: table_records.Counters) -> None:
    for what in ("outputs", "payloads", "tokens"):
        expected, got = getattr(counters, what), getattr(view.counters, what)
        if expected != got:
            raise corrupt(f"the copy of the log must have all of its {what}", expected, got)
