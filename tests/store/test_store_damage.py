"""Damage: truncated files, flipped bytes, misplaced records. Each is refused at open or named by check()."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from store_testing import NS, contents, fill, make_output, plain_stored, refused, rewrite

from suffixsvc.errors import StoreCorruptError, StoreForeignError
from suffixsvc.store import LmdbStore
from suffixsvc.store.records import keys, log_records, table_records
from support.long_form import rounds, sample

if TYPE_CHECKING:
    from store_testing import Db, Txn


def test_a_file_cut_anywhere_is_refused_before_lmdb_maps_it(tmp_path: Path) -> None:
    """LMDB would raise SIGBUS at the first page after the end."""
    whole = tmp_path / "whole"
    fill(whole)
    size = (whole / "data.mdb").stat().st_size
    for cut in (size - 1, size - 4096, size // 2, size // 3, 5 * 4096, 8192):
        folder = tmp_path / str(cut)
        folder.mkdir()
        shutil.copy(whole / "data.mdb", folder)
        os.truncate(folder / "data.mdb", cut)
        assert "truncated" in refused(folder, StoreCorruptError)


def damage_runs(whole: Path, folder: Path, rows: list[object], flips: Callable[[bytearray], None]) -> str:
    """Damage a copy; return 'refused', 'named' (by check()), or 'harmless' if all data is unchanged."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    raw = bytearray((whole / "data.mdb").read_bytes())
    flips(raw)
    (folder / "data.mdb").write_bytes(raw)
    try:
        store = LmdbStore(folder)
    except (StoreCorruptError, StoreForeignError):
        return "refused"
    try:
        try:
            store.check()
        except StoreCorruptError:
            return "named"
        assert [plain_stored(stored) for stored in store.scan()] == rows
        assert store.get_state(NS, "mixer") == bytes(5000)
        return "harmless"
    finally:
        store.close()


def test_damaged_bytes_are_never_silently_wrong(tmp_path: Path) -> None:
    """One to four bytes anywhere in the used pages: refused, named, or without effect."""
    rows = fill(tmp_path / "whole", map_bytes_initial=256 << 10)
    with (tmp_path / "whole" / "data.mdb").open("rb") as f:
        f.seek(136)
        pages = max(struct.unpack("<Q", f.read(8))[0], 10) + 1
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    outcomes = {"refused": 0, "named": 0, "harmless": 0}

    def flips(raw: bytearray) -> None:
        page = rng.randrange(pages)
        for _ in range(rng.randrange(1, 5)):
            # page headers and node pointers are most critical
            at = page * 4096 + (rng.randrange(64) if rng.random() < 0.5 else rng.randrange(4096))
            raw[at] ^= rng.randrange(1, 256)

    damages = rounds(100, full=300)
    for _ in range(damages):
        outcomes[damage_runs(tmp_path / "whole", tmp_path / "copy", rows, flips)] += 1
    print(outcomes)
    assert outcomes["refused"] > damages / 10
    assert outcomes["named"] > damages / 30


def test_every_byte_of_the_meta_pages(tmp_path: Path) -> None:
    rows = fill(tmp_path / "whole", map_bytes_initial=256 << 10)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for at in sample([*range(152), *range(4096, 4096 + 152)], 100, rng):
        flip = rng.choice((1, 2, 0x80, 0xFF))

        def flips(raw: bytearray, at: int = at, flip: int = flip) -> None:
            raw[at] ^= flip

        damage_runs(tmp_path / "whole", tmp_path / "copy", rows, flips)


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_transaction_number_does_not_bring_back_the_past(tmp_path: Path, page: int) -> None:
    """With one changed bit in a meta page (10 becomes 8, next to 9) LMDB selects the transaction before the
    last: a valid file without the last output. Each meta page must therefore match its own tree."""
    rows = fill(tmp_path / "whole", map_bytes_initial=256 << 10)
    at = page * 4096 + 144
    outcomes = set()
    for change in range(-9, 10):

        def flips(raw: bytearray, change: int = change) -> None:
            (txn,) = struct.unpack_from("<Q", raw, at)
            struct.pack_into("<Q", raw, at, max(txn + change, 0))

        outcome = damage_runs(tmp_path / "whole", tmp_path / "copy", rows, flips)
        assert outcome == ("refused" if change else "harmless")
        outcomes.add(outcome)
    assert outcomes == {"refused", "harmless"}


def test_a_damaged_separator_is_noticed(tmp_path: Path) -> None:
    """Iteration finds every row, a lookup descends to the wrong page: check() does both. Found by the random
    test above, as a payload that check() saw and scan() did not."""
    rows = fill(tmp_path / "whole", map_bytes_initial=256 << 10)
    raw = (tmp_path / "whole" / "data.mdb").read_bytes()
    misled = 0
    for page in range(2, len(raw) // 4096):
        number, _, flags, lower = struct.unpack_from("<QHHH", raw, page * 4096)
        if number != page or flags != 1 or (lower - 16) // 2 < 3:  # branch pages with three children
            continue
        one, two = (page * 4096 + at for at in struct.unpack_from("<HH", raw, page * 4096 + 18))
        size = struct.unpack_from("<H", raw, one + 6)[0]
        if size != struct.unpack_from("<H", raw, two + 6)[0]:
            continue

        def flips(image: bytearray, one: int = one, two: int = two, size: int = size) -> None:
            """Move the separator of the second child to just before that of the third."""
            key = int.from_bytes(image[two + 8 : two + 8 + size], "big") - 1
            image[one + 8 : one + 8 + size] = key.to_bytes(size, "big")

        misled += damage_runs(tmp_path / "whole", tmp_path / "copy", rows, flips) == "named"
    assert misled


def a_payload_key(txn: Txn, db: Db) -> keys.PayloadKey:
    for key, _ in txn.cursor(db=db("payloads")):
        return keys.PayloadKey(int.from_bytes(key[:4], "big"), key[4:20], int.from_bytes(key[20:], "big"))
    raise AssertionError("no payload")


def lose_index_row(txn: Txn, db: Db) -> None:
    assert txn.delete(keys.namespace_row_key(1, 5), db=db("by_namespace"))


def lose_index_row_and_add_another(txn: Txn, db: Db) -> None:
    lose_index_row(txn, db)
    txn.put(keys.namespace_row_key(1, 9999), b"", db=db("by_namespace"))


def lose_expiry_row(txn: Txn, db: Db) -> None:
    cursor = txn.cursor(db=db("expiry"))
    assert cursor.first()
    cursor.delete()


def add_expiry_row(txn: Txn, db: Db) -> None:
    txn.put(keys.expiry_key(1, 5), b"", db=db("expiry"))


def lose_log_row(txn: Txn, db: Db) -> None:
    assert txn.delete(keys.log_key(5), db=db("log"))


def miscount_references(txn: Txn, db: Db) -> None:
    key = a_payload_key(txn, db)
    txn.put(keys.payload_key(key), log_records.encode_refs(key, 7), db=db("refs"))


def lose_reference_count(txn: Txn, db: Db) -> None:
    assert txn.delete(keys.payload_key(a_payload_key(txn, db)), db=db("refs"))


def lose_payload(txn: Txn, db: Db) -> None:
    assert txn.delete(keys.payload_key(a_payload_key(txn, db)), db=db("payloads"))


def swap_payload(txn: Txn, db: Db) -> None:
    key = a_payload_key(txn, db)
    other = make_output([77, 78])
    fake = log_records.Payload(other.token_ids, (2,))
    txn.put(
        keys.payload_key(key),
        log_records.encode_payload(key, len(fake.token_ids), fake.content()),
        db=db("payloads"),
    )


def orphan_payload(txn: Txn, db: Db) -> None:
    payload = log_records.Payload(make_output([77, 78]).token_ids, (2,))
    key = keys.PayloadKey(1, log_records.content_hash(payload.content()), 0)
    txn.put(
        keys.payload_key(key),
        log_records.encode_payload(key, len(payload.token_ids), payload.content()),
        db=db("payloads"),
    )


def read_counters(txn: Txn, db: Db) -> table_records.Counters:
    raw = txn.get(b"counters", db=db("meta"))
    assert raw is not None
    return table_records.decode_counters(raw)


def miscount_outputs(txn: Txn, db: Db) -> None:
    c = read_counters(txn, db)
    wrong = replace(c, outputs=c.outputs + 1)
    txn.put(b"counters", table_records.encode_counters(wrong), db=db("meta"))


def take_back_lsns(txn: Txn, db: Db) -> None:
    c = read_counters(txn, db)
    wrong = replace(c, last_lsn=c.last_lsn - 1)
    txn.put(b"counters", table_records.encode_counters(wrong), db=db("meta"))


def state_of_nowhere(txn: Txn, db: Db) -> None:
    txn.put(keys.state_key(9, "x"), table_records.encode_state(9, "x", b""), db=db("state"))


def state_with_a_name_that_is_no_text(txn: Txn, db: Db) -> None:
    txn.put(b"\0\0\0\1\xac", table_records.encode_state(1, "x", b""), db=db("state"))


def unknown_meta_key(txn: Txn, db: Db) -> None:
    txn.put(b"surprise", b"", db=db("meta"))


@pytest.mark.parametrize(
    "damage",
    [
        lose_index_row,
        lose_index_row_and_add_another,
        lose_expiry_row,
        add_expiry_row,
        lose_log_row,
        miscount_references,
        lose_reference_count,
        lose_payload,
        swap_payload,
        orphan_payload,
        miscount_outputs,
        take_back_lsns,
        state_of_nowhere,
        state_with_a_name_that_is_no_text,
        unknown_meta_key,
    ],
)
def test_check_names_every_broken_invariant(tmp_path: Path, damage: Callable[..., None]) -> None:
    """Valid pages and checksums with broken relations, which only check() detects."""
    fill(tmp_path)
    contents(tmp_path)
    rewrite(tmp_path, damage)
    store = LmdbStore(tmp_path)
    with pytest.raises(StoreCorruptError):
        store.check()
    store.close()


@pytest.mark.parametrize("what", ["meta", "counters", "namespaces", "log", "state"])
def test_a_store_without_one_of_its_parts_is_refused(tmp_path: Path, what: str) -> None:
    fill(tmp_path)

    def lose(txn: Txn, db: Db) -> None:
        if what == "counters":
            txn.delete(b"counters", db=db("meta"))
        else:
            txn.drop(db(what), delete=True)

    rewrite(tmp_path, lose)
    refused(tmp_path, StoreForeignError if what == "meta" else StoreCorruptError)


def test_a_twisted_namespace_record_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    row = table_records.encode_namespace(table_records.NamespaceRow(1, "twin", ""))
    rewrite(tmp_path, lambda txn, db: txn.put(b"twin", row, db=db("namespaces")))
    assert "number" in refused(tmp_path, StoreCorruptError)
