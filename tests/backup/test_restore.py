"""Restored folders: what is verified, refused and rebuilt; followers of the old log."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from backup_testing import NS, contents, contents_of, open_cache, output

from suffixsvc.engine.backup.manifest import (
    MANIFEST_NAME,
    BackupManifest,
    DataFileEntry,
    SegmentEntry,
    read_manifest,
)
from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.errors import InvalidInputError, StoreCorruptError, StoreForeignError
from suffixsvc_follower import Follower
from support.following import CONFIG, followed, held, logged
from support.serving import eventually, serving, socket_dir

GOLDEN = Path(__file__).parents[1] / "golden" / "backup"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of 30 outputs in segments with tombstones, and 5 that no segment holds."""
    random = Random(5)
    with open_cache(tmp_path / "data") as cache:
        ids = cache.namespace(NS).add_outputs([output(random) for _ in range(30)])
        cache.seal()
        for output_id in ids[::5]:
            cache.namespace(NS).delete(output_ids=[output_id])
        cache.namespace(NS).add_outputs([output(random) for _ in range(5)])
        cache.backup(tmp_path / "backup")
    return tmp_path / "backup"


def test_the_manifest_is_the_golden_one() -> None:
    manifest = BackupManifest(
        created_at="2026-11-28T23:00:00+00:00",
        made_by="suffixsvc 0.1.0",
        node_id="0123456789abcdef",
        lsn=42,
        namespaces=2,
        outputs=40,
        tokens=1234,
        data=DataFileEntry(4194304, "d5d7d922af7cafce881cbc640f955112"),
        segments=(SegmentEntry("dd522e694aea44ef-1-30-0.seg", 1924, "5f961efbc5f9547e6f60825fb27a0a69"),),
    )
    text = (GOLDEN / "v1.json").read_bytes()
    assert manifest.as_json().encode() == text
    assert BackupManifest.from_json(text, "v1.json") == manifest
    for place in range(len(text)):  # every changed byte is detected, or leaves the same fields
        changed = bytearray(text)
        changed[place] ^= 1
        try:
            assert BackupManifest.from_json(bytes(changed), "v1.json") == manifest
        except (StoreCorruptError, StoreForeignError):
            continue
        assert text[place : place + 1].isspace()


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "gone"])
def test_a_damaged_data_file_is_refused(backup: Path, tmp_path: Path, how: str) -> None:
    path = backup / "data.mdb"
    raw = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    else:
        raw[len(raw) // 3] ^= how == "flipped"
        path.write_bytes(raw[:-1] if how == "cut" else raw + b"\0" * (how == "longer"))
    with pytest.raises(StoreCorruptError, match=r"data\.mdb") as raised:
        restore(backup, tmp_path / "restored")
    assert raised.value.remedy
    assert sorted(os.listdir(tmp_path)) == ["backup", "data"]


@pytest.mark.parametrize("how", ["flipped", "head", "cut", "gone", "another"])
def test_a_damaged_segment_is_rebuilt_from_the_log(backup: Path, tmp_path: Path, how: str) -> None:
    wanted = contents_of(tmp_path / "data")
    files = sorted((backup / "segments").iterdir())
    raw = bytearray(files[0].read_bytes())
    files[0].unlink()  # it is a link
    if how == "another":
        shutil.copyfile(files[1], files[0])
    elif how != "gone":
        raw[20 if how == "head" else -1] ^= how != "cut"
        files[0].write_bytes(raw[: len(raw) // 2] if how == "cut" else raw)
    done = restore(backup, tmp_path / "restored")
    assert done.rebuilt == (files[0].name,)
    assert check_folder(tmp_path / "restored") == []
    assert contents_of(tmp_path / "restored") == wanted


def test_what_is_not_a_complete_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreForeignError, match="must be a backup"):
        restore(tmp_path / "data", tmp_path / "restored")
    with pytest.raises(StoreForeignError, match="must be a backup"):
        restore(tmp_path / "none", tmp_path / "restored")
    manifest = backup / MANIFEST_NAME
    text = manifest.read_text()
    manifest.write_text(text.replace("suffixsvc-backup/1", "suffixsvc-backup/2"))
    with pytest.raises(StoreForeignError, match="supported format"):
        restore(backup, tmp_path / "restored")
    for changed in (text.replace('"lsn": ', '"lsn": 1'), text.replace('"checksum"', '"check"')):
        manifest.write_text(changed)
        with pytest.raises(StoreCorruptError, match="checksum"):
            restore(backup, tmp_path / "restored")
    manifest.write_text("[]")
    with pytest.raises(StoreForeignError):
        restore(backup, tmp_path / "restored")
    manifest.write_text(text)
    (tmp_path / "restored").mkdir()
    (tmp_path / "restored" / "file").write_text("mine")
    with pytest.raises(InvalidInputError, match="new or an empty"):
        restore(backup, tmp_path / "restored")
    assert (tmp_path / "restored" / "file").read_text() == "mine"
    assert json.loads(text)["outputs"] == read_manifest(backup).outputs


def test_a_backup_can_be_restored_more_than_once_and_backed_up_again(backup: Path, tmp_path: Path) -> None:
    wanted = contents_of(tmp_path / "data")
    nodes = {restore(backup, tmp_path / name).node_id for name in ("one", "two")}
    assert len(nodes | {read_manifest(backup).node_id}) == 3
    with open_cache(tmp_path / "one") as cache:
        again = cache.backup(tmp_path / "second")
    assert again.node_id in nodes
    restore(tmp_path / "second", tmp_path / "three")
    assert contents_of(tmp_path / "three") == wanted


def test_an_output_that_is_sent_again_after_a_restore_is_stored_once(backup: Path, tmp_path: Path) -> None:
    """Also with a uuid that the node of the backup generated: rows keep theirs."""
    restore(backup, tmp_path / "restored")
    with open_cache(tmp_path / "restored") as cache:
        before = contents(cache)
        stored = [each.output for each in cache._parts.store.scan()]
        generated = [each for each in stored if each.uuid[:8].hex() == read_manifest(backup).node_id]
        assert generated
        assert len(generated) < len(stored)
        assert cache.namespace(NS).add_outputs(stored) == list(before)
        assert contents(cache) == before


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4", "v5"])
def test_folders_of_earlier_schemas(tmp_path: Path, version: str) -> None:
    """Rows without a uuid have one that the node of their folder generates; they keep it."""
    (tmp_path / "data").mkdir()
    with gzip.open(GOLDEN.parent / "store" / version / "data.mdb.gz") as packed:
        (tmp_path / "data" / "data.mdb").write_bytes(packed.read())
    # the file of a segment of v2 is not there
    assert {each.area for each in check_folder(tmp_path / "data")} <= {"segments"}
    assert not list((tmp_path / "data").glob("*-schema-*")), "a check changes nothing"
    with open_cache(tmp_path / "data", migrate=True) as cache:
        wanted = contents(cache)
        cache.backup(tmp_path / "backup")
        assert wanted
    restore(tmp_path / "backup", tmp_path / "restored")
    assert check_folder(tmp_path / "restored") == []
    assert contents_of(tmp_path / "restored") == wanted


def test_a_follower_of_the_old_log_begins_again_with_the_contents(tmp_path: Path) -> None:
    """It was ahead of the backup: what was written and forgotten since is undone in its copy."""
    random = Random(7)
    data = tmp_path / "data"
    with socket_dir() as folder:
        address = f"unix:{folder / 's.sock'}"
        with open_cache(data) as cache, serving(cache, address):
            ids = cache.namespace(NS).add_outputs([output(random) for _ in range(20)])
            cache.seal()
            cache.backup(tmp_path / "backup")
            wanted = logged(cache, NS)
            follower = Follower(address, CONFIG, [(NS, "")])
            assert follower.wait(NS, 60)
            cache.namespace(NS).delete(output_ids=[ids[0]])
            later = cache.namespace(NS).add_outputs([output(random) for _ in range(5)])
            eventually(lambda: held(follower, NS) == wanted - {ids[0]} | set(later), "it has followed")
        with follower:
            shutil.move(data, tmp_path / "lost")
            restore(tmp_path / "backup", data)
            with open_cache(data) as cache, serving(cache, address):
                # ids of the old log are assigned again, to other outputs
                new = cache.namespace(NS).add_outputs([output(random) for _ in range(9)])
                assert set(later) & set(new)
                eventually(lambda: held(follower, NS) == wanted | set(new), "it has the restored contents")
                assert followed(follower, NS).copy.outputs() == logged(cache, NS)
