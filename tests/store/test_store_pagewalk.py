"""The fast page walk accepts the store's files, and no file in which lmdb.verify finds a fault."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import lmdb
import pytest
from lmdb import verify as lmdb_verify
from store_testing import NS, fill, golden_folder, make_output

from suffixsvc.store import LmdbStore
from suffixsvc.store.files import page_walk
from suffixsvc.types import NamespaceRecord
from support.long_form import rounds


def faults(path: Path) -> list[str]:
    """Whether lmdb.verify finds no fault."""
    try:
        return list(lmdb_verify.verify(str(path), subdir=False))
    except (lmdb_verify.VerifyError, struct.error, IndexError) as error:
        return [str(error)]


def worked_on(folder: Path, seed: int) -> Path:
    """Make a file with appends of all sizes, deletions, growth, and free pages of every kind."""
    rng = random.Random(seed)
    store = LmdbStore(folder, map_bytes_initial=1, sync=False)
    for path in (NS, "b", "c/" + "d" * 150):
        store.add_namespace(NamespaceRecord(path))
    ids: list[int] = []
    for _ in range(rng.randrange(5, 60)):
        sizes = [rng.choice([1, 30, 500, 505, 510, 3000, 40_000]) for _ in range(rng.randrange(1, 30))]
        more = [make_output([rng.randrange(9)] * n, namespace=rng.choice([NS, "b"])) for n in sizes]
        ids += store.append(more).result()
        if rng.random() < 0.5:
            deleted = rng.sample(ids, len(ids) // 2)
            for path in (NS, "b"):
                store.forget_many(path, deleted)
            ids = sorted(set(ids) - set(deleted))
        store.put_state(rng.choice([NS, "b"]), "s" * rng.randrange(1, 200), bytes(rng.randrange(9000)))
    ours = store.output_ids(NS, 1, 2**63)
    if ours:
        store.add_segment(NS, "a.seg", 1, {i: len(store.get(i).output.token_ids) for i in ours})
        store.forget_many(NS, ours[::3])
    store.close()
    return folder / "data.mdb"


@pytest.mark.parametrize("seed", range(rounds(3, full=6)))
def test_the_fast_walk_accepts_every_file_of_the_store(tmp_path: Path, seed: int) -> None:
    """Otherwise an open would silently fall back to the slow walk."""
    path = worked_on(tmp_path, seed)
    assert faults(path) == []
    assert page_walk.is_sound(str(path))


def test_the_fast_walk_accepts_a_free_tree_of_several_levels(tmp_path: Path) -> None:
    """Regression: the integer keys of its branch pages were compared as text, so that deleted rows were not
    overwritten while a long read, as a follower's, kept many transactions' pages from reuse."""
    with lmdb.open(str(tmp_path), max_dbs=2, map_size=64 << 20, sync=False, lib_version=0) as env:
        rows = env.open_db(b"rows")
        with env.begin():  # the pages that are freed below are not reused
            for number in range(1_200):
                with env.begin(write=True, db=rows) as txn:
                    txn.put(b"key", bytes([number % 256]) * 40)
    path = tmp_path / "data.mdb"
    assert faults(path) == []
    with path.open("rb") as file:
        last = page_walk.sound_walk(file.fileno(), gaps=True)
        assert last is not None
        assert last._meta.free.depth > 1
        assert page_walk.sound_walk(file.fileno(), gaps=True, newer=last) is not None


def test_the_fast_walk_accepts_new_and_old_files(tmp_path: Path) -> None:
    LmdbStore(tmp_path / "new").close()
    assert page_walk.is_sound(str(tmp_path / "new" / "data.mdb"))
    for version in ("v1", "v2"):
        assert page_walk.is_sound(str(golden_folder(version, tmp_path / version) / "data.mdb"))


def test_what_lmdb_verify_finds_is_never_called_sound(tmp_path: Path) -> None:
    whole_path = worked_on(tmp_path / "whole", 3)
    with whole_path.open("rb") as file:
        walk = page_walk.Walk(file.fileno())
        walk.check()
    whole = whole_path.read_bytes()[: len(walk.live) * 4096]
    seed = int(os.environ.get("PAGEWALK_SEED", random.randrange(2**32)))
    print(f"PAGEWALK_SEED={seed}")
    rng = random.Random(seed)
    trees = [0, 1] + [
        page
        for page in range(2, len(walk.live))
        if walk.live[page] and struct.unpack_from("<QHH", whole, page * 4096)[::2] in ((page, 1), (page, 2))
    ]
    path = tmp_path / "damaged"
    found = doubted = 0
    for _ in range(300):
        raw = bytearray(whole)
        page = rng.choice(trees) if rng.random() < 0.8 else rng.randrange(len(walk.live))
        for _ in range(rng.randrange(1, 3)):
            node = struct.unpack_from("<H", raw, page * 4096 + 16 + 2 * rng.randrange(4))[0]
            places = [rng.randrange(24), rng.randrange(152), node + rng.randrange(40), rng.randrange(4096)]
            at = page * 4096 + rng.choice(places) % 4096
            raw[at] ^= rng.choice([1, 2, 0x80, rng.randrange(1, 256)])
        path.write_bytes(raw)
        wrong = faults(path)
        sound = page_walk.is_sound(str(path))
        assert not (wrong and sound), wrong[0]
        found += bool(wrong)
        doubted += not sound and not wrong
    print(f"{found} faulty, {doubted} doubted for nothing")
    assert found > 50
    assert doubted < found


@pytest.mark.parametrize("size", [0, 10, 100, 4096, 8192, 20_000])
def test_cut_files_are_not_sound(tmp_path: Path, size: int) -> None:
    fill(tmp_path / "d")
    path = tmp_path / "d" / "data.mdb"
    os.truncate(path, size)
    assert not page_walk.is_sound(str(path))


def test_databases_of_other_kinds_are_left_to_lmdb_verify(tmp_path: Path) -> None:
    """Such as those with duplicate keys: valid, but not used by the store."""
    with lmdb.open(str(tmp_path), max_dbs=2, lib_version=0) as env:
        database = env.open_db(b"d", dupsort=True)
        with env.begin(write=True) as txn:
            for value in (b"1", b"2"):
                txn.put(b"k", value, db=database)
    assert faults(tmp_path / "data.mdb") == []
    assert not page_walk.is_sound(str(tmp_path / "data.mdb"))
