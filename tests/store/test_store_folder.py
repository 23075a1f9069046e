"""Opening data folders: foreign, damaged and locked ones are refused and left unchanged."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from store_testing import NS, ROWS, contents, fill, make_output, refused, rewrite

from suffixsvc.errors import (
    InvalidConfigError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreForeignError,
    StoreLockedError,
)
from suffixsvc.store import LmdbStore
from suffixsvc.store.records import table_records
from suffixsvc.types import NamespaceRecord

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
        timeout=300,
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
    """A child that outlives its parent must not hold the lock, nor use LMDB at its exit."""
    store = LmdbStore(tmp_path)
    store.add_namespace(NamespaceRecord(NS))
    go, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # every path ends in _exit, outside pytest
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
    try:
        assert os.read(done[0], 10) == b"refused"
        store.append([make_output()]).result()
        store.close()
        reopened = LmdbStore(tmp_path)  # while the child is alive
        assert reopened.stats().outputs == 1
        reopened.close()
    finally:
        os.write(go[1], b"x")
        status = os.waitpid(child, 0)[1]
        for fd in (*go, *done):
            os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0


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
    else:  # root can write anywhere but on a read-only mount
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
    ("name", "value"),
    [("limit_bytes", 1000), ("limit_bytes", True), ("map_bytes_initial", 0), ("limit_bytes", 1e9)],
)
def test_invalid_sizes_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        LmdbStore(tmp_path / "data", **{name: value})
    assert not (tmp_path / "data").exists()


def test_a_crash_while_a_store_was_made_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / ".creating").mkdir()
    (tmp_path / ".creating" / "data.mdb").write_bytes(b"half")
    LmdbStore(tmp_path).close()
    assert not (tmp_path / ".creating").exists()


# --- foreign files ------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"SQLite format 3\0" * 1000, b"x" * 20_000, bytes(1 << 20)])
def test_files_of_other_programs_are_refused(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(garbage)
    assert "not an LMDB file" in refused(tmp_path, StoreForeignError)


@pytest.mark.parametrize("size", [0, 1, 16, 100, 4096, 8191])
def test_truncated_meta_pages_are_refused(tmp_path: Path, size: int) -> None:
    """LMDB itself would treat an empty file as a new store."""
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


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    rewrite(
        tmp_path,
        lambda txn, db: txn.put(
            b"schema", table_records.encode_schema(table_records.SCHEMA_VERSION + 1, 0), db=db("meta")
        ),
    )
    message = refused(tmp_path, StoreForeignError)
    assert "schema version" in message
    assert f"got {table_records.SCHEMA_VERSION + 1}, of a newer release" in message
    assert f"expected 1 .. {table_records.SCHEMA_VERSION};" in message
    assert f"restore a backup: the migration from schema N wrote {tmp_path}/backup-schema-N" in message
