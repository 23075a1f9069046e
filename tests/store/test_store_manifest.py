"""The manifest of both stores: segments, tombstones, refusals; its records; folders of schema 1."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from store_testing import GOLDEN as GOLDEN_FOLDERS
from store_testing import NS, Clock, golden_folder, make_output, plain_stored, rewrite

from suffixsvc.errors import ManifestError, StoreCorruptError, StoreFullError, UnknownNamespaceError
from suffixsvc.store import LmdbStore
from suffixsvc.store.base import Store
from suffixsvc.store.lmdb_store import MIN_LIMIT_BYTES
from suffixsvc.store.records import keys, table_records
from suffixsvc.store.transactions.tables import SCHEMAS
from suffixsvc.types import NamespaceRecord, SegmentRecord
from support.store_parts import store_parts_of

GOLDEN = GOLDEN_FOLDERS / "v2"
OTHER = "acme/other"

SEGMENT = SegmentRecord("00f1e2d3c4b5a697-41-43-0.seg", 41, 43, 3, 1500, 1732)
RECORDS: dict[str, tuple[bytes, Any]] = {
    "schema": (table_records.encode_schema(2, 1_700_000_000_250_000), table_records.decode_schema),
    "segment": (
        table_records.encode_segment(7, SEGMENT),
        lambda raw: table_records.decode_segment(raw, keys.namespace_row_key(7, 41)),
    ),
    "tombstone": (
        table_records.encode_tombstone(7, 42, 500),
        lambda raw: table_records.decode_tombstone(raw, keys.namespace_row_key(7, 42)),
    ),
}


def append(store: Store, count: int, namespace: str = NS, **more: Any) -> list[int]:
    return store.append(
        [make_output([7] * (i + 1), namespace=namespace, **more) for i in range(count)]
    ).result()


def seal(store: Store, name: str, ids: list[int]) -> SegmentRecord:
    """Add a segment of these outputs to the manifest."""
    sizes = {i: len(store.get(i).output.token_ids) for i in ids}
    return store.add_segment(NS, name, 100, sizes)


def buried(store: Store) -> dict[int, int]:
    return store.tombstones(NS)


# --- in both stores -------------------------------------------------------


def test_a_segment_stands_for_the_range_of_its_outputs(store: Store) -> None:
    ids = append(store, 4)
    assert store.segments(NS) == []
    assert seal(store, "a", ids[:3]) == SegmentRecord("a", 1, 3, 3, 6, 100)
    assert store.segments(NS) == [SegmentRecord("a", 1, 3, 3, 6, 100)]
    store.check()


def test_forgetting_leaves_a_tombstone_only_where_a_segment_holds_the_output(store: Store) -> None:
    ids = append(store, 5, ttl_seconds=5)
    seal(store, "a", ids[:4])
    store.forget_many(NS, [ids[0]])
    assert [s.output_id for s in store.forget_many(NS, [ids[4], ids[1], ids[1], 99])] == [ids[1], ids[4]]
    assert buried(store) == {ids[0]: 1, ids[1]: 2}
    store.check()
    assert len(store.expire(4e9)) == 2
    assert buried(store) == {ids[0]: 1, ids[1]: 2, ids[2]: 3, ids[3]: 4}
    store.check()


def test_forgetting_many_knows_namespaces(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    theirs = append(store, 2, OTHER)
    ours = append(store, 600)
    assert store.forget_many(NS, theirs) == []
    with pytest.raises(UnknownNamespaceError):
        store.forget_many("nowhere", [])
    assert [s.output_id for s in store.forget_many(NS, ours)] == ours
    assert [s.output_id for s in store.scan()] == theirs


def test_what_was_deleted_while_a_segment_was_built_gets_its_tombstone_with_it(store: Store) -> None:
    ids = append(store, 3)
    sizes = {i: i for i in ids}
    store.forget_many(NS, [ids[1]])
    assert buried(store) == {}
    store.add_segment(NS, "a", 1, sizes)
    assert buried(store) == {ids[1]: 2}
    store.check()


def test_a_segment_that_lacks_an_output_of_its_range_is_refused(store: Store) -> None:
    ids = append(store, 3)
    with pytest.raises(ManifestError, match="lacks") as caught:
        store.add_segment(NS, "a", 1, {ids[0]: 1, ids[2]: 3})
    assert caught.value.remedy
    assert store.segments(NS) == []
    store.add_namespace(NamespaceRecord(OTHER))
    append(store, 1, OTHER)
    more = append(store, 1)
    seal(store, "a", ids + more)  # the ids between belong to another namespace
    store.check()


@pytest.mark.parametrize("ids", [[1], [2, 3], [3, 4], [1, 2, 3, 4, 5]])
def test_ranges_never_overlap(store: Store, ids: list[int]) -> None:
    append(store, 5)
    seal(store, "a", [1, 2, 3])
    with pytest.raises(ManifestError, match="overlaps"):
        seal(store, "b", ids)
    assert [record.name for record in store.segments(NS)] == ["a"]


def test_adjacent_segments_are_replaced_and_obsolete_tombstones_removed(store: Store) -> None:
    ids = append(store, 8)
    for name, part in (("b", ids[2:4]), ("a", ids[:2]), ("c", ids[4:6]), ("d", ids[6:])):
        seal(store, name, part)
    assert [record.name for record in store.segments(NS)] == ["a", "b", "c", "d"]
    store.forget_many(NS, [1, 2, 4, 8])
    merged = store.replace_segments(NS, ["b", "c"], "m", 5, [2, 4, 8])
    assert merged == SegmentRecord("m", 3, 6, 3, 14, 5)
    assert buried(store) == {1: 1, 2: 2, 8: 8}, "others' tombstones stay"
    store.check()
    store.forget_many(NS, [5])
    assert store.replace_segments(NS, ["m"], "n", 5, []) == SegmentRecord("n", 3, 6, 3, 14, 5)
    assert buried(store).keys() == {1, 2, 5, 8}, "it was not left out"
    store.check()


def test_segments_that_are_not_adjacent_cannot_be_merged(store: Store) -> None:
    ids = append(store, 7)
    for name, part in (("a", ids[:2]), ("b", ids[2:4]), ("c", ids[4:5]), ("d", ids[6:])):
        seal(store, name, part)
    for names in (["a", "c"], ["c", "d"], ["a", "x"]):
        with pytest.raises(ManifestError):
            store.replace_segments(NS, names, "m", 1, [])
    with pytest.raises(ManifestError, match="already"):
        store.replace_segments(NS, ["a", "b"], "c", 1, [])
    store.forget_many(NS, [ids[5]])
    store.replace_segments(NS, ["c", "d"], "m", 1, [])
    assert [record.name for record in store.segments(NS)] == ["a", "b", "m"]
    store.check()


def test_a_dropped_segment_leaves_its_range_to_the_log(store: Store) -> None:
    ids = append(store, 4)
    seal(store, "a", ids[:2])
    seal(store, "b", ids[2:])
    store.forget_many(NS, [1, 3])
    store.drop_segments(NS, ["a"])
    assert buried(store) == {3: 3}
    with pytest.raises(ManifestError):
        store.drop_segments(NS, ["a"])
    store.forget_many(NS, [2])
    assert buried(store) == {3: 3}
    store.check()


def test_ids_of_a_range(store: Store) -> None:
    store.add_namespace(NamespaceRecord(OTHER))
    append(store, 2)
    append(store, 2, OTHER)
    append(store, 2)
    assert store.output_ids(NS, 0, 99) == [1, 2, 5, 6]
    assert store.output_ids(NS, 2, 5) == [2, 5]
    assert store.output_ids(NS, 3, 4) == []
    assert store.output_ids(NS, 1, 99, limit=1) == [1]


# --- on disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert RECORDS[name][0].hex(" ", 8) == golden.hex(" ", 8)


def test_golden_files_read_back() -> None:
    decoded = {
        name: decode(bytes.fromhex((GOLDEN / f"{name}.hex").read_text()))
        for name, (_, decode) in RECORDS.items()
    }
    schema = (2, 1_700_000_000_250_000, False)
    assert decoded == {"schema": schema, "segment": (7, SEGMENT), "tombstone": (42, 500)}


@pytest.mark.parametrize("name", RECORDS)
def test_every_changed_byte_and_every_other_length_is_noticed(name: str) -> None:
    raw, decode = RECORDS[name]
    for at in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[at] ^= flip
            with pytest.raises(StoreCorruptError):
                decode(bytes(damaged))
        with pytest.raises(StoreCorruptError):
            decode(raw[:at])
    with pytest.raises(StoreCorruptError):
        decode(raw + b"\0" * 8)


@pytest.mark.parametrize("name", ["segment", "tombstone"])
def test_a_record_under_another_key_is_noticed(name: str) -> None:
    raw = RECORDS[name][0]
    decode = table_records.decode_segment if name == "segment" else table_records.decode_tombstone
    for key in (keys.namespace_row_key(8, 41), keys.namespace_row_key(7, 40), b""):
        with pytest.raises(StoreCorruptError):
            decode(raw, key)


@pytest.mark.parametrize("name", ["", "a/b", "a\0"])
def test_names_that_are_not_file_names_are_damage(name: str) -> None:
    raw = table_records.encode_segment(7, SegmentRecord(name, 1, 2, 1, 1, 1))
    with pytest.raises(StoreCorruptError, match="name"):
        table_records.decode_segment(raw, keys.namespace_row_key(7, 1))


def fill_golden_folder(folder: Path) -> list[Any]:
    store = LmdbStore(folder, clock=Clock(), map_bytes_initial=256 << 10)
    store.add_namespace(NamespaceRecord(NS))
    append(store, 5)
    seal(store, "one.seg", [1, 2])
    seal(store, "two.seg", [3, 4])
    store.forget_many(NS, [2, 3])
    rows: list[Any] = [plain_stored(stored) for stored in store.scan()]
    store.close()
    return rows


def test_a_folder_written_by_schema_2_opens(tmp_path: Path) -> None:
    expected = fill_golden_folder(tmp_path / "now")
    store = LmdbStore(golden_folder("v2", tmp_path / "old"), migrate=True)
    assert [plain_stored(stored) for stored in store.scan()] == expected
    assert store.segments(NS) == [
        SegmentRecord("one.seg", 1, 2, 2, 3, 100),
        SegmentRecord("two.seg", 3, 4, 2, 7, 100),
    ]
    assert buried(store) == {2: 2, 3: 3}
    store.check()
    store.close()


def test_a_folder_of_schema_1_gets_a_manifest_when_it_is_opened(tmp_path: Path) -> None:
    for _ in range(2):
        folder = tmp_path / "old" if (tmp_path / "old").exists() else golden_folder("v1", tmp_path / "old")
        store = LmdbStore(folder, migrate=True)
        assert store.segments("acme/a") == []
        store.check()
        store.close()
    store = LmdbStore(folder)
    store.add_segment("acme/a", "a", 1, {3: 40})
    store.forget_many("acme/a", [3])
    assert store.tombstones("acme/a") == {3: 40}
    store.check()
    store.close()


def test_without_room_for_a_manifest_history_is_served_and_nothing_sealed(tmp_path: Path) -> None:
    """A folder of schema 1 must open on a full disk, without a manifest."""
    folder = golden_folder("v1", tmp_path / "old")
    used = LmdbStore(folder, migrate=True, limit_bytes=MIN_LIMIT_BYTES)
    assert used.segments("acme/a") == []
    used.close()
    store = LmdbStore(golden_folder("v1", tmp_path / "full"), migrate=True, limit_bytes=MIN_LIMIT_BYTES)
    environment = store_parts_of(store).environment
    environment.handles = {name: handle for name, handle in environment.handles.items() if SCHEMAS[name] == 1}
    assert store.segments("acme/a") == []
    assert store.tombstones("acme/a") == {}
    with pytest.raises(StoreFullError, match="'segments'"):
        store.add_segment("acme/a", "a", 1, {3: 40})
    store.forget_many("acme/a", [3])
    store.check()
    store.close()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda txn, db: txn.delete(keys.namespace_row_key(1, 2), db=db("tombstones")), "number of outputs"),
        (
            lambda txn, db: txn.put(
                keys.namespace_row_key(1, 5), table_records.encode_tombstone(1, 5, 5), db=db("tombstones")
            ),
            "is in the log",
        ),
        (
            lambda txn, db: txn.put(
                keys.namespace_row_key(1, 9), table_records.encode_tombstone(1, 9, 5), db=db("tombstones")
            ),
            "in no segment",
        ),
        (
            lambda txn, db: txn.put(
                keys.namespace_row_key(9, 1),
                table_records.encode_segment(9, SegmentRecord("x", 1, 2, 0, 0, 0)),
                db=db("segments"),
            ),
            "unknown namespace",
        ),
        (
            lambda txn, db: txn.put(
                keys.namespace_row_key(1, 1),
                table_records.encode_segment(1, SegmentRecord("one.seg", 1, 2, 2, 4, 100)),
                db=db("segments"),
            ),
            "number of tokens",
        ),
    ],
)
def test_check_names_broken_invariants(tmp_path: Path, damage: Any, why: str) -> None:
    fill_golden_folder(tmp_path)
    rewrite(tmp_path, damage)
    store = LmdbStore(tmp_path)
    with pytest.raises(StoreCorruptError, match=why):
        store.check()
    store.close()


def test_a_manifest_with_overlapping_ranges_is_refused(tmp_path: Path) -> None:
    fill_golden_folder(tmp_path)
    raw = table_records.encode_segment(1, SegmentRecord("x", 2, 3, 1, 1, 1))
    rewrite(tmp_path, lambda txn, db: txn.put(keys.namespace_row_key(1, 2), raw, db=db("segments")))
    with pytest.raises(StoreCorruptError, match="overlap"):
        LmdbStore(tmp_path)


if __name__ == "__main__":  # writes the golden files of a new record or schema version
    import tempfile

    GOLDEN.mkdir(parents=True, exist_ok=True)
    for record_name, (record_bytes, _) in RECORDS.items():
        rows_of_16 = [record_bytes[at : at + 16].hex(" ", 4) for at in range(0, len(record_bytes), 16)]
        (GOLDEN / f"{record_name}.hex").write_text("\n".join(rows_of_16) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        fill_golden_folder(Path(scratch) / "golden")
        with gzip.GzipFile(GOLDEN / "data.mdb.gz", "wb", mtime=0) as out:
            out.write((Path(scratch) / "golden" / "data.mdb").read_bytes())
