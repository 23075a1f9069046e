"""Output identity (schema 3): uuids, node ids, incomplete outputs of sessions; records, damage."""

from __future__ import annotations

import gzip
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_testing import GOLDEN as GOLDEN_FOLDERS
from store_testing import (
    NS,
    OTHER,
    UUID,
    Clock,
    find,
    golden_folder,
    make_output,
    node_id_of,
    plain_stored,
    rewrite,
    uuid_of,
)

from suffixsvc.errors import InvalidInputError, StoreCorruptError, UnknownNamespaceError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.records import keys, log_records, table_records
from suffixsvc.types import IncompleteOutput, NamespaceRecord, repeated_in

GOLDEN = GOLDEN_FOLDERS / "v3"
NODE = 0x0123456789ABCDEF

LOG = log_records.LogRecord(
    lsn=42,
    payload=keys.PayloadKey(7, bytes(range(16)), 1),
    token_count=5,
    written_us=1_700_000_000_250_000,
    ttl_seconds=3600,
    incomplete=True,
    corpus=False,
    prompt_tail=np.asarray((11, 12, 2**31 - 1), dtype=np.int32),
    labels={"agent": "sql-writer"},
    uuid=UUID,
    node_id=NODE,
    principal=0,
    session_id="sitzung-ñ",
)
RECORDS: dict[str, tuple[bytes, Any]] = {
    "schema": (table_records.encode_schema(3, 1_700_000_000_250_000), table_records.decode_schema),
    "log": (log_records.encode_log(LOG), lambda raw: log_records.decode_log(raw, 42)),
    "node": (table_records.encode_node(NODE), table_records.decode_node),
    "pending": (
        table_records.encode_pending([(41, 552), (560, 560)]),
        lambda raw: table_records.decode_pending(raw, keys.log_key(41)),
    ),
    "namespace": (
        table_records.encode_namespace(table_records.NamespaceRow(7, "acme/a", "xxh3:1", deleting=True)),
        lambda raw: table_records.decode_namespace(raw, b"acme/a"),
    ),
}
KEYS = {
    "uuid_key": keys.uuid_key(7, UUID),
    "incomplete_key": keys.incomplete_key("sitzung-ñ", 42),
    "drawn_uuid": keys.generated_uuid(NODE, 42),
}


# --- in both stores --------------------------------------------------------------------------------


def test_what_a_writer_says_of_an_output_is_kept(store: Store) -> None:
    (one,) = store.append([make_output([1, 2], uuid=UUID, session_id="s")]).result()
    stored = store.get(one).output
    assert (stored.uuid, stored.session_id) == (UUID, "s")
    assert find(store, NS, UUID) == one
    assert node_id_of(store) > 0


def test_an_output_that_is_there_is_not_logged_again(store: Store) -> None:
    """A retried close or a bulk load that is sent again stores nothing twice."""
    first = store.append([make_output([1, 2], uuid=UUID)]).result()
    assert repeated_in(first) == []
    again = store.append(
        [make_output([5]), make_output([1, 2], uuid=UUID), make_output([6]), store.get(1).output]
    ).result()
    assert again == [2, 1, 3, 1]
    assert repeated_in(again) == [1, 3]
    twice = bytes(reversed(UUID))
    both = store.append([make_output([9], uuid=twice), make_output([9], uuid=twice)]).result()
    assert (both, repeated_in(both)) == ([4, 4], [1])
    assert store.stats().outputs == store.stats().last_lsn == 4
    store.forget_many(NS, [1])
    assert find(store, NS, UUID) is None
    assert store.append([make_output([1, 2], uuid=UUID)]).result() == [6], "it was forgotten, so it is new"


def test_one_uuid_cannot_name_two_outputs(store: Store) -> None:
    store.append([make_output([1, 2], uuid=UUID)]).result()
    with pytest.raises(InvalidInputError, match="one output"):
        store.append([make_output([7]), make_output([1, 3], uuid=UUID)]).result()
    other = bytes(reversed(UUID))
    with pytest.raises(InvalidInputError, match="one output"):
        store.append([make_output([1], uuid=other), make_output([2], uuid=other)]).result()
    assert store.stats().outputs == store.stats().last_lsn == 1


def test_namespaces_do_not_see_each_others_uuids(store: Store) -> None:
    """A uuid in another namespace neither suppresses an output nor reveals one."""
    store.append([make_output([1, 2], uuid=UUID)]).result()
    future = store.append([make_output([3], namespace=OTHER, uuid=UUID)], [NamespaceRecord(OTHER)])
    assert future.result() == [2]
    assert repeated_in(future.result()) == []
    assert (find(store, NS, UUID), find(store, OTHER, UUID)) == (1, 2)
    with pytest.raises(UnknownNamespaceError):
        find(store, "nowhere", UUID)
    store.delete_namespace(NS)
    assert find(store, OTHER, UUID) == 2


def test_every_output_has_a_unique_uuid(store: Store) -> None:
    """Without a chosen one the store generates it from node and id, which needs no index."""
    ids = store.append([make_output([n]) for n in range(3)]).result()
    assert [store.get(n).output.uuid for n in ids] == [uuid_of(store, n) for n in ids]
    assert [find(store, NS, uuid_of(store, n)) for n in (*ids, 4)] == [*ids, None]
    # the same again, as from an export
    again = store.append([store.get(2).output]).result()
    assert (again, repeated_in(again)) == ([2], [0])
    store.forget_many(NS, [2])
    assert find(store, NS, uuid_of(store, 2)) is None
    back = store.append([make_output([1], uuid=uuid_of(store, 2))]).result()
    assert back == [5]
    assert find(store, NS, uuid_of(store, 2)) == 5
    with pytest.raises(InvalidInputError, match="store generates"):
        store.append([make_output([1], uuid=uuid_of(store, 7))]).result()
    assert store.append([make_output([1]), make_output([2])]).result() == [6, 7]


@pytest.mark.parametrize(
    "change", [{"uuid": b"short"}, {"uuid": "x" * 16}, {"session_id": "x" * 201}, {"session_id": 7}]
)
def test_malformed_identities_are_refused(store: Store, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        store.append([make_output([1], **change)]).result()


def test_what_a_session_left_is_found_by_its_id(store: Store) -> None:
    store.append([make_output([n]) for n in range(5)]).result()
    left = make_output([1, 2], incomplete=True, session_id="mine", uuid=UUID)
    (one,) = store.append([left]).result()
    whole = make_output([1, 2, 3], session_id="mine")
    nameless = make_output([4], incomplete=True)
    (two,) = store.append(
        [make_output([3], namespace=OTHER, incomplete=True, session_id="mine"), whole, nameless],
        [NamespaceRecord(OTHER)],
    ).result()[:1]
    found = store.incomplete("mine")
    assert found == [IncompleteOutput(one, NS, UUID), IncompleteOutput(two, OTHER, uuid_of(store, two))]
    assert store.incomplete("other") == store.incomplete("") == []
    store.forget_many(NS, [one])
    assert [each.output_id for each in store.incomplete("mine")] == [two]
    store.delete_namespace(OTHER)
    assert store.incomplete("mine") == []


def test_a_bulk_load_that_is_sent_again_goes_on_where_it_ended(store: Store) -> None:
    outputs = [make_output([n], uuid=uuid.uuid5(uuid.NAMESPACE_OID, str(n)).bytes) for n in range(1500)]
    first = store.append(outputs[:700]).result()
    ids = store.append(outputs).result()
    assert ids[:700] == first
    assert repeated_in(ids) == list(range(700))
    assert store.stats().outputs == 1500


# --- on disk ---------------------------------------------------------------------------------------


def test_it_is_all_there_after_a_restart(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    node = node_id_of(store)
    store.add_namespace(NamespaceRecord(NS))
    left = make_output([1, 2], incomplete=True, session_id="mine", uuid=UUID)
    store.append([make_output([9]), left]).result()
    store.close()
    store = LmdbStore(tmp_path)
    assert node_id_of(store) == node
    assert find(store, NS, UUID) == 2
    assert store.incomplete("mine") == [IncompleteOutput(2, NS, UUID)]
    assert store.append([left]).result() == [2]
    store.check()
    store.close()
    assert node_id_of(LmdbStore(tmp_path / "other")) != node


def test_equal_hashes_of_session_ids_are_told_apart(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(keys.xxhash, "xxh3_128_digest", lambda raw: b"same" * 4)
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output([n], incomplete=True, session_id=s) for n, s in enumerate("abab")]).result()
    assert [each.output_id for each in store.incomplete("a")] == [1, 3]
    store.close()


@pytest.mark.parametrize("name", [*RECORDS, *KEYS])
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    ours = RECORDS[name][0] if name in RECORDS else KEYS[name]
    assert ours.hex(" ", 8) == golden.hex(" ", 8)


def test_golden_files_read_back() -> None:
    decoded = {
        name: decode(bytes.fromhex((GOLDEN / f"{name}.hex").read_text()))
        for name, (_, decode) in RECORDS.items()
    }
    log = decoded.pop("log")
    assert decoded == {
        "schema": (3, 1_700_000_000_250_000, False),
        "node": NODE,
        "pending": [(41, 552), (560, 560)],
        "namespace": table_records.NamespaceRow(7, "acme/a", "xxh3:1", deleting=True),
    }
    for name in log_records.LogRecord.__slots__:
        if name != "prompt_tail":
            assert getattr(log, name) == getattr(LOG, name), name
    assert log.prompt_tail.tolist() == LOG.prompt_tail.tolist()


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


def fill_golden_folder(folder: Path) -> list[Any]:
    store = LmdbStore(folder, clock=Clock(), map_bytes_initial=256 << 10)
    store.add_namespace(NamespaceRecord(NS, "xxh3:0123456789abcdef"))
    store.append(
        [
            make_output([1, 2], uuid=UUID, session_id="mine", incomplete=True, labels={"agent": "sql"}),
            make_output([1, 2, 3], uuid=bytes(reversed(UUID)), session_id="mine", ttl_seconds=10**8),
            make_output([7]),
        ]
    ).result()
    rows: list[Any] = [
        (*plain_stored(stored), stored.output.uuid, stored.output.session_id) for stored in store.scan(NS)
    ]
    store.close()
    return rows[:2]  # the third one's uuid is generated


def test_a_folder_written_by_schema_3_opens(tmp_path: Path) -> None:
    expected = fill_golden_folder(tmp_path / "now")
    store = LmdbStore(golden_folder("v3", tmp_path / "old"), migrate=True)
    found = [(*plain_stored(s), s.output.uuid, s.output.session_id) for s in store.scan(NS)]
    assert found[:2] == expected
    assert found[2][3] == uuid_of(store, 3)
    assert find(store, NS, UUID) == 1
    assert store.incomplete("mine") == [IncompleteOutput(1, NS, UUID)]
    store.check()
    store.close()


# --- damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda txn, db: txn.delete(keys.uuid_key(1, UUID), db=db("uuids")), "by its uuid"),
        (lambda txn, db: txn.put(keys.uuid_key(1, UUID), keys.log_key(2), db=db("uuids")), "by its uuid"),
        (lambda txn, db: txn.put(keys.uuid_key(1, bytes(16)), keys.log_key(2), db=db("uuids")), "uuids"),
        (lambda txn, db: txn.delete(keys.incomplete_key("mine", 1), db=db("incomplete")), "by its session"),
        (lambda txn, db: txn.put(keys.incomplete_key("x", 2), b"", db=db("incomplete")), "incomplete"),
    ],
)
def test_check_names_broken_invariants(tmp_path: Path, damage: Any, why: str) -> None:
    fill_golden_folder(tmp_path)
    rewrite(tmp_path, damage)
    store = LmdbStore(tmp_path)
    with pytest.raises(StoreCorruptError, match=why):
        store.check()
    store.close()


def test_memory_has_a_node_too() -> None:
    assert node_id_of(MemoryStore()) != node_id_of(MemoryStore())


if __name__ == "__main__":  # writes the golden files of a new record or schema version
    import tempfile

    GOLDEN.mkdir(parents=True, exist_ok=True)
    written = {**{name: raw for name, (raw, _) in RECORDS.items()}, **KEYS}
    for record_name, record_bytes in written.items():
        rows_of_16 = [record_bytes[at : at + 16].hex(" ", 4) for at in range(0, len(record_bytes), 16)]
        (GOLDEN / f"{record_name}.hex").write_text("\n".join(rows_of_16) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        fill_golden_folder(Path(scratch) / "golden")
        with gzip.GzipFile(GOLDEN / "data.mdb.gz", "wb", mtime=0) as out:
            out.write((Path(scratch) / "golden" / "data.mdb").read_bytes())
