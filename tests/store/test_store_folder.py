"""What the data folder may be: ours, whole, not in use. Everything else is refused and left as it was."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from store_testing import NS, make_output, plain_stored

from suffixsvc.errors import (
    InvalidConfigError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreLockedError,
)
from suffixsvc.store import LmdbStore
from suffixsvc.store import records as r
from suffixsvc.types import NamespaceRecord

ROWS = 40


def fill(folder: Path, **more: int) -> list[object]:
    store = LmdbStore(folder, **more)
    store.add_namespace(NamespaceRecord(NS))
    store.append([make_output(range(i + 1, i + 300), labels={"n": str(i)}) for i in range(ROWS)]).result()
    store.append([make_output([1, 2], ttl_seconds=7), make_output([1, 2])]).result()
    store.forget(NS, 3)
    store.put_state(NS, "mixer", bytes(5000))
    rows: list[object] = [plain_stored(stored) for stored in store.scan()]
    store.close()
    return rows


def contents(folder: Path) -> list[object]:
    store = LmdbStore(folder)
    try:
        store.check()
        assert store.get_state(NS, "mixer") == bytes(5000)
        return [plain_stored(stored) for stored in store.scan()]
    finally:
        store.close()


# --- opening and locking --------------------------------------------------------------------------


def test_folders_are_made_and_history_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    rows = fill(folder)
    assert len(rows) == ROWS + 1
    assert contents(folder) == rows
    assert sorted(p.name for p in folder.iterdir()) == ["data.mdb", "lock.mdb", "owner.lock"]


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
    for file in (tmp_path / "data").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


def test_progress_is_reported_while_a_folder_is_verified(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    seen: list[tuple[int, int]] = []
    LmdbStore(tmp_path / "data", progress=lambda done, total: seen.append((done, total))).close()
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_second_store_in_this_process_is_refused(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    with pytest.raises(StoreLockedError) as caught:
        LmdbStore(tmp_path)
    assert "this process" in str(caught.value)
    store.close()
    LmdbStore(tmp_path).close()


def in_another_process(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    prelude = "import sys; from suffixsvc.store import LmdbStore; from suffixsvc.errors import *; "
    return subprocess.run(
        [sys.executable, "-c", prelude + code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    code = "\ntry: LmdbStore(sys.argv[1])\nexcept StoreLockedError as e: print(e)"
    result = in_another_process(code, tmp_path)
    assert f"process {os.getpid()}" in result.stdout, result.stderr
    store.close()


def test_kill_9_releases_the_lock(tmp_path: Path) -> None:
    code = "s = LmdbStore(sys.argv[1]); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert in_another_process(code, tmp_path).returncode == -9
    LmdbStore(tmp_path).close()


def test_a_store_that_is_never_closed_is_closed_at_exit(tmp_path: Path) -> None:
    code = (
        "from suffixsvc.types import NamespaceRecord; s = LmdbStore(sys.argv[1], sync=False); "
        "s.add_namespace(NamespaceRecord('kept'))"
    )
    result = in_another_process(code, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    store = LmdbStore(tmp_path)
    assert store.namespaces() == [NamespaceRecord("kept")]
    store.close()


def test_a_forked_child_neither_uses_the_store_nor_keeps_the_lock(tmp_path: Path) -> None:
    """A child that outlives its parent must not keep the folder locked, nor touch LMDB at its exit."""
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    go, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # no pytest in here: every path ends in _exit
        try:
            for call in (
                store.stats,
                lambda: store.get(1),
                lambda: store.append([make_output()]).result(),
                lambda: list(store.scan()),
            ):
                try:
                    call()
                    os._exit(1)
                except StoreClosedError:
                    pass
            store.close()
            os.write(done[1], b"refused")
            os.read(go[0], 1)
            os._exit(0)
        finally:
            os._exit(2)
    assert os.read(done[0], 10) == b"refused"
    store.append([make_output()]).result()
    store.close()
    reopened = LmdbStore(tmp_path)  # while the child is alive
    assert reopened.stats().outputs == 1
    reopened.close()
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for fd in (*go, *done):
        os.close(fd)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("precious")
    with pytest.raises(StoreForeignError, match="not a folder") as caught:
        LmdbStore(path)
    assert caught.value.remedy
    assert path.read_text() == "precious"
    with pytest.raises(StoreError):
        LmdbStore(path / "below")


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o500)
        undo: Callable[[], object] = lambda: folder.chmod(0o700)  # noqa: E731  # a one-line undo
    else:  # root writes anywhere, except where nobody can
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("runs as root but may not mount, so nothing here is read-only")
        undo = lambda: subprocess.run(["umount", str(folder)], check=True)  # noqa: E731  # a one-line undo
    try:
        with pytest.raises(StoreError, match=r"owner\.lock") as caught:
            LmdbStore(folder)
        assert "writable" in str(caught.value)
    finally:
        undo()


@pytest.mark.parametrize(
    "arguments",
    [{"limit_bytes": 1000}, {"limit_bytes": True}, {"map_bytes_initial": 0}, {"limit_bytes": 1e9}],
)
def test_sizes_that_make_no_sense_are_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidConfigError):
        LmdbStore(tmp_path / "data", **arguments)
    assert not (tmp_path / "data").exists()


def test_a_crash_while_a_store_was_made_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / ".creating").mkdir()
    (tmp_path / ".creating" / "data.mdb").write_bytes(b"half")
    LmdbStore(tmp_path).close()
    assert not (tmp_path / ".creating").exists()


# --- files that are not ours ------------------------------------------------------------------------


def refused(folder: Path, error: type[Exception]) -> str:
    before = (folder / "data.mdb").read_bytes()
    with pytest.raises(error) as caught:
        LmdbStore(folder)
    assert (folder / "data.mdb").read_bytes() == before, "a refused file was changed"
    assert getattr(caught.value, "remedy", None)
    return str(caught.value)


@pytest.mark.parametrize("garbage", [b"SQLite format 3\0" * 1000, b"x" * 20_000, bytes(1 << 20)])
def test_files_of_other_programs_are_refused(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(garbage)
    assert "not an LMDB file" in refused(tmp_path, StoreForeignError)


@pytest.mark.parametrize("size", [0, 1, 16, 100, 4096, 8191])
def test_stumps_are_refused(tmp_path: Path, size: int) -> None:
    """LMDB itself would take an empty file for a new store and the history would be gone."""
    fill(tmp_path)
    os.truncate(tmp_path / "data.mdb", size)
    refused(tmp_path, StoreCorruptError)


def test_the_lmdb_file_of_another_program_is_refused(tmp_path: Path) -> None:
    env = lmdb.open(str(tmp_path), map_size=1 << 20, max_dbs=4, lib_version=0)
    with env.begin(write=True) as txn:
        txn.put(b"k", b"v", db=env.open_db(b"mails", txn=txn))
    env.close()
    assert "another program" in refused(tmp_path, StoreForeignError)
    env = lmdb.open(str(tmp_path), map_size=1 << 20, max_dbs=4, lib_version=0)
    with env.begin(write=True) as txn:
        txn.put(b"schema", b"their own", db=env.open_db(b"meta", txn=txn))
    env.close()
    assert "another program" in refused(tmp_path, StoreForeignError)


def test_another_lmdb_data_format_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with (tmp_path / "data.mdb").open("r+b") as f:
        for page in (0, 1):
            f.seek(page * 4096 + 20)
            f.write(struct.pack("<I", 3))
    assert "data format" in refused(tmp_path, StoreForeignError)


def rewrite(
    folder: Path, change: Callable[[lmdb.Transaction, Callable[[str], lmdb._Database]], None]
) -> None:
    """Change a store behind its back, through LMDB, so that only our own checks can notice."""
    size = (folder / "data.mdb").stat().st_size
    env = lmdb.open(str(folder), map_size=size, max_dbs=16, lib_version=0)
    with env.begin(write=True) as txn:
        change(txn, lambda name: env.open_db(name.encode(), txn=txn, create=False))
    env.close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    rewrite(tmp_path, lambda txn, db: txn.put(b"schema", r.encode_schema(2, 0), db=db("meta")))
    message = refused(tmp_path, StoreForeignError)
    assert "schema version" in message
    assert "newer" in message


# --- damage -----------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_is_refused_before_lmdb_maps_it(tmp_path: Path) -> None:
    """LMDB would answer with SIGBUS at the first page behind the end."""
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
    """Damage a copy; 'refused', 'named' by check(), or 'harmless' when everything reads as it was."""
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
    """One to four bytes anywhere in the pages in use: refused, named, or without any effect."""
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
            # page headers and node pointers hurt the most
            at = page * 4096 + (rng.randrange(64) if rng.random() < 0.5 else rng.randrange(4096))
            raw[at] ^= rng.randrange(1, 256)

    for _ in range(300):
        outcomes[damage_runs(tmp_path / "whole", tmp_path / "copy", rows, flips)] += 1
    print(outcomes)
    assert outcomes["refused"] > 30
    assert outcomes["named"] > 10


def test_every_byte_of_the_meta_pages(tmp_path: Path) -> None:
    """A damaged newest meta page must not quietly bring back the transaction before it."""
    rows = fill(tmp_path / "whole", map_bytes_initial=256 << 10)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for at in [*range(152), *range(4096, 4096 + 152)]:
        flip = rng.choice((1, 2, 0x80, 0xFF))

        def flips(raw: bytearray, at: int = at, flip: int = flip) -> None:
            raw[at] ^= flip

        damage_runs(tmp_path / "whole", tmp_path / "copy", rows, flips)


def a_payload_key(txn: lmdb.Transaction, db: Callable[[str], lmdb._Database]) -> r.PayloadKey:
    for key, _ in txn.cursor(db=db("payloads")):
        return r.PayloadKey(int.from_bytes(key[:4], "big"), key[4:20], int.from_bytes(key[20:], "big"))
    raise AssertionError("no payload")


Db = Callable[[str], "lmdb._Database"]


def lose_index_row(txn: lmdb.Transaction, db: Db) -> None:
    assert txn.delete(r.namespace_row_key(1, 5), db=db("by_namespace"))


def lose_index_row_and_add_another(txn: lmdb.Transaction, db: Db) -> None:
    lose_index_row(txn, db)
    txn.put(r.namespace_row_key(1, 9999), b"", db=db("by_namespace"))


def lose_expiry_row(txn: lmdb.Transaction, db: Db) -> None:
    cursor = txn.cursor(db=db("expiry"))
    assert cursor.first()
    cursor.delete()


def add_expiry_row(txn: lmdb.Transaction, db: Db) -> None:
    txn.put(r.expiry_key(1, 5), b"", db=db("expiry"))


def lose_log_row(txn: lmdb.Transaction, db: Db) -> None:
    assert txn.delete(r.log_key(5), db=db("log"))


def miscount_references(txn: lmdb.Transaction, db: Db) -> None:
    key = a_payload_key(txn, db)
    txn.put(r.payload_key(key), r.encode_refs(key, 7), db=db("refs"))


def lose_reference_count(txn: lmdb.Transaction, db: Db) -> None:
    assert txn.delete(r.payload_key(a_payload_key(txn, db)), db=db("refs"))


def lose_payload(txn: lmdb.Transaction, db: Db) -> None:
    assert txn.delete(r.payload_key(a_payload_key(txn, db)), db=db("payloads"))


def swap_payload(txn: lmdb.Transaction, db: Db) -> None:
    key = a_payload_key(txn, db)
    other = make_output([77, 78])
    fake = r.Payload(other.token_ids, (2,))
    txn.put(r.payload_key(key), r.encode_payload(key, fake), db=db("payloads"))


def orphan_payload(txn: lmdb.Transaction, db: Db) -> None:
    payload = r.Payload(make_output([77, 78]).token_ids, (2,))
    key = r.PayloadKey(1, r.content_hash(payload.content()), 0)
    txn.put(r.payload_key(key), r.encode_payload(key, payload), db=db("payloads"))


def miscount_outputs(txn: lmdb.Transaction, db: Db) -> None:
    counters = r.decode_counters(txn.get(b"counters", db=db("meta")))
    wrong = r.Counters(counters.last_lsn, counters.last_namespace_id, counters.outputs + 1, *(0, 0))
    txn.put(b"counters", r.encode_counters(wrong), db=db("meta"))


def take_back_lsns(txn: lmdb.Transaction, db: Db) -> None:
    c = r.decode_counters(txn.get(b"counters", db=db("meta")))
    wrong = r.Counters(c.last_lsn - 1, c.last_namespace_id, c.outputs, c.payloads, c.tokens)
    txn.put(b"counters", r.encode_counters(wrong), db=db("meta"))


def state_of_nowhere(txn: lmdb.Transaction, db: Db) -> None:
    txn.put(r.state_key(9, "x"), r.encode_state(9, "x", b""), db=db("state"))


def unknown_meta_key(txn: lmdb.Transaction, db: Db) -> None:
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
        unknown_meta_key,
    ],
)
def test_check_names_every_broken_invariant(tmp_path: Path, damage: Callable[..., None]) -> None:
    """Whole pages, valid checksums, wrong relations: what only check() can see."""
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

    def lose(txn: lmdb.Transaction, db: Db) -> None:
        if what == "counters":
            txn.delete(b"counters", db=db("meta"))
        else:
            txn.drop(db(what), delete=True)

    rewrite(tmp_path, lose)
    refused(tmp_path, StoreForeignError if what == "meta" else StoreCorruptError)


def test_a_twisted_namespace_record_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    row = r.encode_namespace(r.NamespaceRow(1, "twin", ""))
    rewrite(tmp_path, lambda txn, db: txn.put(b"twin", row, db=db("namespaces")))
    assert "number" in refused(tmp_path, StoreCorruptError)
