"""Migration of folders of older schemas: only if asked for, after a backup; downgrades are refused."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from store_testing import GOLDEN, golden_folder, plain_stored

from suffixsvc import SuffixCache
from suffixsvc.errors import StoreError, StoreForeignError, StoreFullError
from suffixsvc.store import LmdbStore
from suffixsvc.store.records.table_records import OLDEST_SCHEMA, SCHEMA_VERSION
from support.command_line import run_verb
from support.serving import PATIENCE_S, ServeProcess, socket_dir
from support.small_disk import files_up_to

OLDER = range(OLDEST_SCHEMA, SCHEMA_VERSION)


def old_folder(schema: int, path: Path) -> tuple[Path, bytes]:
    """A folder of an older schema, and the bytes of its data file."""
    folder = golden_folder(f"v{schema}", path)
    return folder, (folder / "data.mdb").read_bytes()


def rows(folder: Path, *, migrate: bool = False) -> list[object]:
    store = LmdbStore(folder, migrate=migrate)
    try:
        store.check()
        return [plain_stored(stored) for stored in store.scan()]
    finally:
        store.close()


def test_every_schema_up_to_the_current_has_a_golden_folder() -> None:
    schemas = {int(each.name[1:]) for each in GOLDEN.iterdir()}
    assert schemas == set(range(OLDEST_SCHEMA, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("schema", OLDER)
def test_an_older_folder_is_refused_and_left_unchanged(tmp_path: Path, schema: int) -> None:
    folder, before = old_folder(schema, tmp_path / "old")
    for open_it in (LmdbStore, SuffixCache):
        with pytest.raises(StoreForeignError) as raised:
            open_it(folder)
        for words in (f"{folder} must have schema {SCHEMA_VERSION}; ", f"got schema {schema}, of an earlier"):
            assert words in str(raised.value)
        for remedy in ("suffixsvc migrate", "serve --migrate", "migrate=True", "backup"):
            assert remedy in str(raised.value)
    assert (folder / "data.mdb").read_bytes() == before
    assert not list(folder.glob("backup-*"))


@pytest.mark.parametrize("schema", OLDER)
def test_a_migration_begins_with_a_backup_that_can_be_restored(tmp_path: Path, schema: int) -> None:
    """The backup is the file as it was; in place of the folder's it is the folder as it was."""
    folder, before = old_folder(schema, tmp_path / "old")
    expected = rows(folder, migrate=True)
    assert expected
    backup = folder / f"backup-schema-{schema}"
    assert (backup / "data.mdb").read_bytes() == before
    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    assert stat.S_IMODE((backup / "data.mdb").stat().st_mode) == 0o600
    assert rows(folder) == expected, "a migrated folder opens without a migration"
    with pytest.raises(StoreForeignError, match=f"got schema {schema}"):
        LmdbStore(backup)  # what the earlier release opens
    # restored, as docs/upgrading.md has it
    shutil.copyfile(backup / "data.mdb", folder / "data.mdb")
    with pytest.raises(StoreForeignError, match=f"got schema {schema}"):
        LmdbStore(folder)
    assert rows(folder, migrate=True) == expected
    assert [each.name for each in folder.glob("backup-*")] == [backup.name]


def test_a_backup_of_another_state_is_not_overwritten(tmp_path: Path) -> None:
    folder, _ = old_folder(1, tmp_path / "old")
    other, others = old_folder(2, tmp_path / "other")
    backup = folder / "backup-schema-1"
    backup.mkdir()
    other.joinpath("data.mdb").rename(backup / "data.mdb")
    with pytest.raises(StoreError, match=f"{backup} must not exist before a migration.* Move it away"):
        LmdbStore(folder, migrate=True)
    assert (backup / "data.mdb").read_bytes() == others
    backup.rename(tmp_path / "moved")
    assert rows(folder, migrate=True)


def test_without_room_for_the_backup_nothing_changes(tmp_path: Path) -> None:
    folder, before = old_folder(3, tmp_path / "old")
    with files_up_to(len(before) // 2), pytest.raises(StoreFullError, match=r"backup-schema-3/data\.mdb"):
        LmdbStore(folder, migrate=True)
    assert (folder / "data.mdb").read_bytes() == before
    assert not list((folder / "backup-schema-3").iterdir())
    assert rows(folder, migrate=True)


def test_a_current_folder_has_no_backup(tmp_path: Path) -> None:
    for _ in range(2):
        with SuffixCache(tmp_path / "new", migrate=True) as cache:
            cache.namespace("a").add_output([1, 2])
    assert not list((tmp_path / "new").glob("backup-*"))


def test_the_verb_migrates(tmp_path: Path) -> None:
    folder, before = old_folder(1, tmp_path / "old")
    run = run_verb("stats", "--data", str(folder))
    assert run.returncode == 2
    assert "suffixsvc migrate" in run.stderr
    for done in (f"migrated from schema 1; backup: {folder / 'backup-schema-1'}", "unchanged"):
        run = run_verb("migrate", folder)
        said = f"{folder} has schema {SCHEMA_VERSION} ({done})\n"
        assert (run.returncode, run.stdout) == (0, said), run.stderr
    assert (folder / "backup-schema-1" / "data.mdb").read_bytes() == before
    assert run_verb("stats", "--data", str(folder)).returncode == 0
    assert "must be a folder with a data.mdb" in run_verb("migrate", tmp_path / "none").stderr


@pytest.mark.parametrize("schema", OLDER)
def test_a_service_refuses_an_older_folder_unless_it_may_migrate(schema: int) -> None:
    with socket_dir() as folder:
        data, before = old_folder(schema, folder / "data")
        process = ServeProcess(folder).launch()
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        [line] = [line for line in said.splitlines() if line.startswith("suffixsvc serve:")]
        assert f"got schema {schema}, of an earlier release" in line
        assert "serve --migrate" in line
        assert (data / "data.mdb").read_bytes() == before
        with ServeProcess(folder, "--migrate") as serve:
            assert serve.start().terminate() == 0
        assert (data / f"backup-schema-{schema}" / "data.mdb").read_bytes() == before
        with ServeProcess(folder) as serve:
            assert serve.start().terminate() == 0
