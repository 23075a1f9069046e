"""A new log from the rows of a damaged data file that can be read.

    payloads, states, manifests ─┐
    log records, whose payload is there ──> new file: indexes, reference counts, totals
    deletions, counters ─────────┘

A row is taken if its record and its payload have their checksums. Nothing is left out silently: the report
names each output that was lost, also those that only the index of their namespace still lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from more_itertools import chunked, take

from suffixsvc.clock import ClockReading
from suffixsvc.errors import StoreCorruptError, StoreForeignError
from suffixsvc.store.copies.log_copy import purge_namespace, put_manifests, put_rows
from suffixsvc.store.copies.new_file import NewDataFile
from suffixsvc.store.files.salvage import SalvageReader
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.store.transactions.read_view import ReadView
from suffixsvc.store.transactions.snapshot import Manifest, Names
from suffixsvc.store.transactions.tables import Database
from suffixsvc.store.transactions.write_view import WriteView
from suffixsvc.types import OutputId

#: rows of one transaction
_ROWS: Final = 512
#: namespaces whose record is lost get this path and their number
_RECOVERED: Final = "recovered/namespace-"


class Dropped(NamedTuple):
    """Something of the damaged file that the new one does not have.

    Attributes:
        kind: "output", "state", "namespace", "principal", "segment" or "record".
        name: its id or name.
        reason: why.
        namespace: path of the namespace of an output; "" if it is not known.
        principal: who wrote an output; "" if it is not known, or the operator.
    """

    kind: str
    name: str
    reason: str
    namespace: str = ""
    principal: str = ""


@dataclass(slots=True)
class Salvaged:
    """What a damaged file holds besides rows, and what was dropped so far.

    Attributes:
        namespaces: by number, without those that were being deleted.
        manifests: by number; to be compared with log and files.
        tombstones: tokens by namespace number and id.
        pending: rows of unfinished appends.
        principals: names by number.
        nameless: number of outputs of each principal whose name is lost.
        erasure: LSN up to which deleted texts are still to be erased from the disk; 0: none.
        access_controlled: whether a server with access control has served the log; None: it cannot be read.
        listed: namespace number of each id that the index of the namespaces lists.
        owners: numbers of namespace and principal of outputs that were dropped and whose record can be read.
        last_lsn, last_number: the greatest that were assigned.
        outputs_before: outputs that the file had, by its counters; None if they cannot be read.
        skipped: outputs of namespaces that were being deleted.
    """

    dropped: list[Dropped] = field(default_factory=list)
    namespaces: dict[int, table_records.NamespaceRow] = field(default_factory=dict)
    deleting: set[int] = field(default_factory=set)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    tombstones: dict[tuple[int, OutputId], int] = field(default_factory=dict)
    deleted: set[OutputId] = field(default_factory=set)
    pending: list[tuple[bytes, bytes]] = field(default_factory=list)
    principals: dict[int, str] = field(default_factory=dict)
    nameless: Counter[int] = field(default_factory=Counter)
    erasure: OutputId = 0
    access_controlled: bool | None = None
    listed: dict[OutputId, int] = field(default_factory=dict)
    owners: dict[OutputId, tuple[int, int]] = field(default_factory=dict)
    clock: ClockReading | None = None
    node_id: int = 0
    last_lsn: OutputId = 0
    last_number: int = 0
    outputs_before: int | None = None
    skipped: int = 0

    def drop(self, kind: str, name: object, reason: object) -> None:
        """Record that something is dropped."""
        self.dropped.append(Dropped(kind, str(name), str(reason)))

    def name_owners(self) -> None:
        """Add namespace and principal to the dropped outputs, where they are known."""
        self.dropped = [self._named(each) if each.kind == "output" else each for each in self.dropped]

    def _named(self, dropped: Dropped) -> Dropped:
        lsn = int(dropped.name)
        number, principal = self.owners.get(lsn, (self.listed.get(lsn, 0), 0))
        row = self.namespaces.get(number)
        return dropped._replace(
            namespace="" if row is None else row.path, principal=self.principals.get(principal, "")
        )


def salvage_log(reader: SalvageReader, target: NewDataFile) -> Salvaged:
    """Write the rows of a damaged file that can be read into a new one; :func:`finish_log` follows.

    Raises:
        StoreForeignError: the file has another schema version.
        StoreFullError, StoreError: the new file cannot be written.
    """
    found = Salvaged()
    for batch in chunked(_take_small(reader, found), _ROWS):
        databases: tuple[Database, ...] = ("payloads", "state")
        for database in databases:
            rows = [(key, raw) for kind, key, raw in batch if kind == database]
            target.write(partial(put_rows, database=database, rows=rows))
    if found.node_id:  # rows of an older schema have it in their uuid
        target.write(lambda view: view.put_node(found.node_id))
    places = target.write(partial(_put_principals, names=found.principals))
    lost: set[OutputId] = set()
    numbers: set[int] = set()
    for records in chunked(_log_records(reader, found, lost), _ROWS):
        dropped = target.write(partial(_put_records, records=records, places=places))
        found.dropped += dropped
        lost.update(int(each.name) for each in dropped)
        found.owners.update(_owner(record) for record in records if record.lsn in lost)
        numbers.update(record.payload.namespace_id for record in records)
    _name_unknown(found, numbers)
    if found.access_controlled is None:
        found.drop(
            "record", "access control", "whether it was required is lost; it is now (serve --open-to-all)"
        )
    for number, outputs in sorted(found.nameless.items()):
        found.drop("principal", f"number {number}", f"its name is lost; {outputs} outputs have none now")
    for lsns in chunked(sorted(found.listed.keys() - lost - found.deleted), _ROWS):
        for lsn in target.read(partial(_missing, lsns=lsns)):
            # an entry beyond the last LSN is damaged
            if found.listed[lsn] not in found.deleting and lsn <= found.last_lsn:
                found.drop("output", lsn, "its record cannot be read")
    _drop_once(found, target)
    found.name_owners()
    return found


def finish_log(
    target: NewDataFile,
    found: Salvaged,
    manifests: Mapping[int, Manifest],
    tombstones: Mapping[tuple[int, OutputId], int],
) -> None:
    """Complete the new file as the log of a new node.

    Args:
        manifests: segments that hold what the log holds, by namespace number.
        tombstones: of outputs in their ranges.
    """
    first = b""
    while found_keys := target.read(partial(_payload_keys, first=first)):
        target.write(partial(_drop_unused, raw_keys=found_keys))
        first = found_keys[-1] + b"\0"
    for number in sorted(target.read(_state_numbers) - found.namespaces.keys()):
        found.drop("state", f"of namespace {number}", "its namespace does not exist")
        while target.write(partial(purge_namespace, number=number)):
            pass
    rows = [
        (keys.namespace_row_key(number, lsn), table_records.encode_tombstone(number, lsn, tokens))
        for (number, lsn), tokens in sorted(tombstones.items())
    ]
    for part in chunked(rows, _ROWS):
        target.write(partial(put_rows, database="tombstones", rows=part))
    target.write(partial(_put_rest, found=found, manifests=manifests), found.clock)


# --- reading ----------------------------------------------------------------------------------------------


def _take_small(reader: SalvageReader, found: Salvaged) -> Iterator[tuple[Database, bytes, bytes]]:
    """Take everything but log records; yield database, key and value of payloads and states."""
    for key, raw in reader.rows():
        if not raw and len(key) == len(keys.namespace_row_key(0, 0)):
            found.listed[keys.lsn_of(key)] = int.from_bytes(key[:4], "big")
            continue
        kind = _KINDS.get(raw[:4])
        if kind is None:
            continue
        try:
            if kind == "payloads":
                _check_payload(key, raw)
                yield "payloads", key, raw
            elif kind == "state":
                table_records.decode_state(raw, key)
                yield "state", key, raw
            else:
                _take(found, kind, key, raw)
        except StoreCorruptError as error:
            if kind != "payloads":  # the outputs that refer to it are reported
                found.drop("record", f"{kind} {key.hex()}", error.message)


def _check_payload(key: bytes, raw: bytes) -> None:
    if len(key) != len(keys.payload_key(keys.PayloadKey(0, bytes(16), 0))):
        raise StoreCorruptError("the key of a payload has a wrong length")
    payload_key = keys.payload_key_of(key)
    content = log_records.decode_payload(raw, payload_key).content()
    if log_records.content_hash(content) != payload_key.digest:
        raise StoreCorruptError("a payload does not match its hash")


def _take(found: Salvaged, kind: str, key: bytes, raw: bytes) -> None:
    """Take a record of the small databases. StoreCorruptError, StoreForeignError."""
    match kind:
        case "namespaces":
            _take_namespace(found, table_records.decode_namespace(raw, key))
        case "segments":
            number, record = table_records.decode_segment(raw, key)
            before = found.manifests.get(number, ())
            found.manifests[number] = before if record in before else (*before, record)
            found.last_lsn = max(found.last_lsn, record.last_lsn)
        case "tombstones":
            lsn, tokens = table_records.decode_tombstone(raw, key)
            found.tombstones[int.from_bytes(key[:4], "big"), lsn] = tokens
            found.last_lsn = max(found.last_lsn, lsn)
        case "deletions":
            deletion = table_records.decode_deletion(raw, key)
            found.deleted.add(deletion.output_id)
            found.last_lsn = max(found.last_lsn, deletion.lsn)
        case "pending":
            table_records.decode_pending(raw, key)
            found.pending.append((key, raw))
        case "schema":
            row = table_records.decode_schema(raw)
            _require_supported(row.version)
            # a page that is not used any more may hold an earlier record
            found.access_controlled = found.access_controlled or row.access_controlled
        case "counters":
            counters = table_records.decode_counters(raw)
            found.outputs_before = counters.outputs
            found.last_lsn = max(found.last_lsn, counters.last_lsn)
            found.last_number = max(found.last_number, counters.last_namespace_id)
        case "clock":
            found.clock = table_records.decode_clock(raw)
        case "node":
            found.node_id = table_records.decode_node(raw)
        case "principals":
            number, name = table_records.decode_principal(raw, key)
            found.principals[number] = name
        case "erasure":
            found.erasure = table_records.decode_erasure(raw)


def _take_namespace(found: Salvaged, row: table_records.NamespaceRow) -> None:
    found.last_number = max(found.last_number, row.namespace_id)
    if row.deleting:
        found.deleting.add(row.namespace_id)
    else:
        found.namespaces[row.namespace_id] = row


def _require_supported(schema: int) -> None:
    if not table_records.OLDEST_SCHEMA <= schema <= table_records.SCHEMA_VERSION:
        raise StoreForeignError(
            "the data folder must have a supported schema to be repaired",
            expected=f"{table_records.OLDEST_SCHEMA} .. {table_records.SCHEMA_VERSION}",
            got=schema,
            remedy="Repair it with the release of suffixsvc that wrote it.",
        )


def _log_records(
    reader: SalvageReader, found: Salvaged, lost: set[OutputId]
) -> Iterator[log_records.LogRecord]:
    """Yield the log records; those that are damaged or deleted are added to ``lost``.

    A record can be there twice: pages that are not used any more hold earlier copies, and half a page can be
    that of another one.
    """
    seen: set[OutputId] = set()
    for key, raw in reader.rows():
        if raw[:4] != b"SXLG" or len(key) != len(keys.log_key(0)):
            continue
        lsn = keys.lsn_of(key)
        found.last_lsn = max(found.last_lsn, lsn)
        try:
            record = log_records.decode_log(raw, lsn)
        except StoreCorruptError as error:
            found.drop("output", lsn, error.message)
            lost.add(lsn)
            continue
        if lsn in seen:
            continue
        seen.add(lsn)
        if record.payload.namespace_id in found.deleting:
            found.skipped += 1
            continue
        if lsn in found.deleted:
            found.drop("output", lsn, "its deletion is in the log")
            found.owners.update([_owner(record)])
            lost.add(lsn)
            continue
        if record.principal and record.principal not in found.principals:
            found.nameless[record.principal] += 1
        yield record


def _drop_once(found: Salvaged, target: NewDataFile) -> None:
    """Name each lost output once, and none of which a second copy is sound."""
    named = sorted({int(each.name) for each in found.dropped if each.kind == "output"})
    missing: set[str] = set()
    for lsns in chunked(named, _ROWS):
        missing.update(map(str, target.read(partial(_missing, lsns=lsns))))
    lost = {(each.kind, each.name): each for each in reversed(found.dropped)}
    found.dropped = [
        each for each in reversed(lost.values()) if each.kind != "output" or each.name in missing
    ]


def _owner(record: log_records.LogRecord) -> tuple[OutputId, tuple[int, int]]:
    return record.lsn, (record.payload.namespace_id, record.principal)


def _name_unknown(found: Salvaged, numbers: Iterable[int]) -> None:
    """Give namespaces whose record is lost a path of their own."""
    taken = {row.path for row in found.namespaces.values()}
    for number in sorted(set(numbers) - found.namespaces.keys()):
        path = f"{_RECOVERED}{number}"
        while path in taken:
            path += "-"
        found.namespaces[number] = table_records.NamespaceRow(number, path, "")
        found.last_number = max(found.last_number, number)
        found.drop("namespace", f"number {number}", f"its path and tokenizer are lost; it is now {path}")


# --- reading and writing the new file ---------------------------------------------------------------------


def _put_principals(view: WriteView, names: Mapping[int, str]) -> dict[int, int]:
    """Write the principals; return their numbers by those before, which had no gaps."""
    for _, name in sorted(names.items()):
        if name not in view.principals.numbers:
            view.put_principal(name)
    return {number: view.principals.numbers[name] for number, name in names.items()}


def _put_records(
    view: WriteView, records: list[log_records.LogRecord], places: Mapping[int, int]
) -> list[Dropped]:
    """Write rows whose payload is there; return the others.

    Args:
        places: new numbers of the principals whose names are there; others become 0.
    """
    dropped = []
    for record in records:
        payload = view.tables.get("payloads", keys.payload_key(record.payload))
        if payload is None:
            dropped.append(Dropped("output", str(record.lsn), "its payload is damaged or missing"))
            continue
        try:
            log_records.payload_of(record, payload)
        except StoreCorruptError as error:
            dropped.append(Dropped("output", str(record.lsn), error.message))
        else:
            named = replace(record, principal=places.get(record.principal, 0))
            view.put_row(view.identified(named), payload)
    return dropped


def _missing(view: ReadView, lsns: list[OutputId]) -> list[OutputId]:
    return [lsn for lsn in lsns if view.tables.get("log", keys.log_key(lsn)) is None]


def _payload_keys(view: ReadView, first: bytes) -> list[bytes]:
    return take(_ROWS, view.tables.keys("payloads", first))


def _drop_unused(view: WriteView, raw_keys: list[bytes]) -> None:
    """Drop the payloads of outputs that were deleted or dropped."""
    for raw_key in raw_keys:
        if view.tables.get("refs", raw_key) is None:
            view.drop("payloads", raw_key)


def _state_numbers(view: ReadView) -> set[int]:
    return {int.from_bytes(key[:4], "big") for key in view.tables.keys("state")}


def _put_rest(view: WriteView, found: Salvaged, manifests: Mapping[int, Manifest]) -> None:
    put_manifests(view, Names.of(found.namespaces), manifests)
    put_rows(view, "pending", found.pending)
    last_lsn = max(found.last_lsn, view.counters.last_lsn)
    view.restore_counters(last_lsn=last_lsn, last_namespace_id=found.last_number)
    if found.erasure:
        view.put_erasure(found.erasure)
    if found.access_controlled is not False:
        view.put_access_controlled(True)
    view.put_node()


#: what a record is of, by its magic: a database, or a key of "meta". Others are derived, or log records
_KINDS: Final[Mapping[bytes, str]] = {
    b"SXPL": "payloads",
    b"SXST": "state",
    b"SXNS": "namespaces",
    b"SXSG": "segments",
    b"SXTS": "tombstones",
    b"SXDL": "deletions",
    b"SXPD": "pending",
    b"SXHD": "schema",
    b"SXCT": "counters",
    b"SXCK": "clock",
    b"SXND": "node",
    b"SXPR": "principals",
    b"SXER": "erasure",
}
