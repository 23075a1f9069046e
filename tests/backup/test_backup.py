"""Backups of caches in use: what is in them, what is not, and what writers notice."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from backup_testing import (
    NS,
    PROMPTS,
    at,
    contents,
    contents_of,
    drafts,
    open_cache,
    output,
    seal_one,
)

from suffixsvc import SuffixCache
from suffixsvc.engine.backup.manifest import read_manifest
from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.backup.writer import back_up_folder
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.errors import InvalidConfigError, InvalidInputError, StoreError
from suffixsvc.selection import Selection
from suffixsvc.store.copies import log_copy
from suffixsvc.store.records import table_records
from suffixsvc.store.transactions import write_view
from support.engine_parts import parts_of
from support.store_parts import store_parts_of


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "_ROWS", 4)
    monkeypatch.setattr(log_copy, "_LAST_LSNS", 4)


def fill(cache: SuffixCache, count: int = 40, path: str = NS, seed: int = 1) -> list[int]:
    random = Random(seed)
    return cache.namespace(path).add_outputs([output(random, path) for _ in range(count)])


def test_a_backup_is_a_data_folder_with_everything(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        ids = fill(cache)
        cache.seal()
        fill(cache, 2, "other", seed=2)  # too few to be sealed
        cache.namespace("other").put_note("origin", b"a log")
        cache.namespace(NS).delete(output_ids=[ids[3]])  # leaves a tombstone
        manifest = cache.backup(tmp_path / "backup")
        wanted, wanted_drafts = contents(cache), drafts(cache, NS, PROMPTS)
        assert manifest.lsn == cache.stats().last_lsn
    assert read_manifest(tmp_path / "backup") == manifest
    assert (manifest.outputs, manifest.namespaces) == (len(wanted), 2)
    assert manifest.segments
    assert check_folder(tmp_path / "backup") == []
    done = restore(tmp_path / "backup", tmp_path / "restored")
    assert done.rebuilt == ()
    assert done.node_id != manifest.node_id
    for folder in (tmp_path / "backup", tmp_path / "restored"):
        with open_cache(folder) as cache:
            cache.check()
            assert contents(cache) == wanted
            assert cache.namespace("other").note("origin") == b"a log"
            assert drafts(cache, NS, PROMPTS) == wanted_drafts
            assert cache.stats().segments == len(manifest.segments)
            assert min(fill(cache, 1, seed=3)) > manifest.lsn


def test_a_requested_erasure_is_in_the_backup(tmp_path: Path) -> None:
    """Its segments may hold what was deleted: the folder that is restored from it erases."""
    with open_cache(tmp_path / "data") as cache:
        ids = fill(cache)
        cache.seal()
        cache.delete(Selection(NS, ids[:3]))
        requested = parts_of(cache).store.erasure_due()
        assert requested
        cache.backup(tmp_path / "backup")
        cache.erase()
        cache.backup(tmp_path / "clean")
        wanted = contents(cache)
    for name, due in (("backup", requested), ("clean", 0)):
        restore(tmp_path / name, tmp_path / f"{name}-restored")
        assert check_folder(tmp_path / f"{name}-restored") == []
        with open_cache(tmp_path / f"{name}-restored") as cache:
            assert parts_of(cache).store.erasure_due() == due
            assert contents(cache) == wanted
            cache.erase()
            assert not parts_of(cache).store.erasure_due()
            cache.check()


def test_what_was_deleted_and_erased_during_a_backup_is_erased_in_it(tmp_path: Path) -> None:
    """The rows were copied before, so that pages of the copy held them."""
    cache: SuffixCache

    def erase() -> None:
        cache.delete(Selection(NS, ids[:3]))
        cache.erase()

    with open_cache(tmp_path / "data", at({"backup-rest": erase})) as cache:
        ids = fill(cache)
        cache.namespace(NS).put_note("origin", b"a log")
        manifest = cache.backup(tmp_path / "backup")
        assert manifest.outputs == len(ids) - 3
        assert not parts_of(cache).store.erasure_due()
        wanted = contents(cache)
    with open_cache(tmp_path / "backup") as cache:
        assert parts_of(cache).store.erasure_due() == manifest.lsn
        cache.check()
        assert contents(cache) == wanted


def test_what_was_learned_since_the_last_open_is_in_the_backup(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        fill(cache)
        for prompt in PROMPTS:
            session = cache.namespace(NS).open_session(prompt)
            for token in range(12):
                session.step([token], max_draft_tokens=4)
            session.close(commit=False)
        cache.backup(tmp_path / "backup")
        learned = parts_of(cache).catalog.index_of(NS).learner.save()
    restore(tmp_path / "backup", tmp_path / "restored")
    with open_cache(tmp_path / "restored") as cache:
        assert parts_of(cache).catalog.index_of(NS).learner.save() == learned


def test_a_folder_without_a_service_is_backed_up_too(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        fill(cache)
        cache.seal()
        wanted = contents(cache)
    shown: list[tuple[int, int]] = []
    back_up_folder(tmp_path / "data", tmp_path / "backup", progress=lambda *step: shown.append(step))
    assert shown[-1] == (40, 40)
    assert contents_of(tmp_path / "backup") == wanted
    with pytest.raises(InvalidConfigError):
        back_up_folder(tmp_path / "none", tmp_path / "second", progress=lambda *step: None)


def test_the_map_grows_and_writers_go_on_between_pages(tmp_path: Path) -> None:
    """A read that stayed open would block the growth, and with it this very thread."""
    events: list[str] = []
    grown: list[int] = []
    cache: SuffixCache

    def write() -> None:
        environment = store_parts_of(parts_of(cache).store).environment
        before = environment.map_bytes
        events.append("write begins")
        for number in range(100):
            cache.namespace(NS).put_note(f"{len(grown)} {number}", os.urandom(1 << 20))
            if environment.map_bytes > before:
                break
        fill(cache, 2, seed=len(grown))
        grown.append(environment.map_bytes - before)
        events.append("write is durable")

    points: dict[str, Callable[[], object]] = {"backup-page": write, "backup-rest": write}
    points["backup-ended"] = write
    hook = at(points)

    def sync_point(name: str) -> None:
        if name.startswith(("backup", "folder")):
            events.append(name)
        hook(name)

    with open_cache(tmp_path / "data", sync_point) as cache:
        fill(cache, 8)
        cache.seal()
        manifest = cache.backup(tmp_path / "backup")
        events.append("backup returns")
        wanted = {i: row for i, row in contents(cache).items() if i <= manifest.lsn}
    assert not points, "each point was passed"
    assert all(grown)
    for first, second in pairwise(events):
        assert (first == "write begins") == (second == "write is durable")
    assert events.index("write is durable") < events.index("folder-built")
    assert contents_of(tmp_path / "backup") == wanted


def test_the_backup_has_what_was_written_meanwhile_and_not_what_was_forgotten(tmp_path: Path) -> None:
    cache: SuffixCache
    ids: list[int] = []
    late: list[int] = []

    def change() -> None:
        late.extend(fill(cache, 3, seed=5))
        for output_id in (ids[0], ids[39], late[1]):
            cache.namespace(NS).delete(output_ids=[output_id])

    with open_cache(tmp_path / "data", at({"backup-page": change})) as cache:
        ids += fill(cache)
        cache.backup(tmp_path / "backup")
        wanted = contents(cache)
    found = contents_of(tmp_path / "backup")
    assert found == wanted
    assert {late[0], late[2]} < found.keys()
    assert not {ids[0], ids[39], late[1]} & found.keys()


def test_segments_that_are_merged_meanwhile(tmp_path: Path) -> None:
    cache: SuffixCache
    with open_cache(tmp_path / "data", at({"backup-segment": lambda: cache.compact()})) as cache:
        ids = fill(cache)
        cache.seal()
        before = cache.stats().segments
        for output_id in ids[::3]:
            cache.namespace(NS).delete(output_ids=[output_id])
        manifest = cache.backup(tmp_path / "backup")
        wanted = contents(cache)
    assert before > 1
    assert len(manifest.segments) == 1
    assert [p.name for p in (tmp_path / "backup" / "segments").iterdir()] == [manifest.segments[0].name]
    assert check_folder(tmp_path / "backup") == []
    assert contents_of(tmp_path / "backup") == wanted


@pytest.mark.parametrize("when", ["backup-page", "backup-rest", "backup-ended"])
def test_a_namespace_that_is_deleted_meanwhile(tmp_path: Path, when: str) -> None:
    cache: SuffixCache
    with open_cache(tmp_path / "data", at({when: lambda: cache.delete_namespace("other")})) as cache:
        fill(cache)
        fill(cache, 30, "other")
        cache.namespace("other").put_note("origin", b"a log")
        cache.seal()
        manifest = cache.backup(tmp_path / "backup")
        wanted = contents(cache)
    found = contents_of(tmp_path / "backup")
    assert check_folder(tmp_path / "backup") == []
    if when == "backup-ended":
        assert {i: row for i, row in found.items() if row[1] == NS} == wanted
        assert manifest.namespaces == 2
    else:
        assert found == wanted
        assert manifest.namespaces == 1


def test_a_segment_file_that_is_lost_is_left_out(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        ids = fill(cache)
        cache.seal()
        for output_id in ids[::4]:
            cache.namespace(NS).delete(output_ids=[output_id])
        gone = sorted(parts_of(cache).store.segment_names())[0]
        (tmp_path / "data" / "segments" / gone).unlink()
        manifest = cache.backup(tmp_path / "backup")
        wanted = contents(cache)
    assert gone not in {each.name for each in manifest.segments}
    assert check_folder(tmp_path / "backup") == []
    assert contents_of(tmp_path / "backup") == wanted


def test_segments_are_links_or_copies(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        fill(cache)
        cache.seal()
        cache.backup(tmp_path / "linked")
        cache.backup(tmp_path / "copied", copy_segments=True)
        name = sorted(parts_of(cache).store.segment_names())[0]
    files = [tmp_path / folder / "segments" / name for folder in ("data", "linked", "copied")]
    inodes = [file.stat().st_ino for file in files]
    assert inodes[0] == inodes[1] != inodes[2]
    assert files[0].read_bytes() == files[2].read_bytes()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
def test_a_backup_on_another_file_system_has_copies(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs a second file system")
        with open_cache(tmp_path / "data") as cache:
            fill(cache)
            cache.seal()
            cache.backup(Path(other) / "backup")
            wanted = contents(cache)
        assert check_folder(Path(other) / "backup") == []
        assert contents_of(Path(other) / "backup") == wanted


def test_refused_folders_stay_as_they_are(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        fill(cache)
        (tmp_path / "used").mkdir()
        (tmp_path / "used" / "file").write_text("mine")
        (tmp_path / "file").write_text("mine")
        for folder in (tmp_path / "used", tmp_path / "file", tmp_path / "none" / "backup"):
            with pytest.raises(InvalidInputError) as raised:
                cache.backup(folder)
            assert raised.value.remedy
        (tmp_path / "empty").mkdir()
        cache.backup(tmp_path / "empty")
    assert (tmp_path / "used" / "file").read_text() == (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["data", "empty", "file", "used"]
    with SuffixCache() as cache, pytest.raises(InvalidConfigError):
        cache.backup(tmp_path / "second")


def test_more_deletions_than_the_log_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache: SuffixCache
    monkeypatch.setattr(write_view, "MAX_DELETIONS", 3)

    def forget() -> None:
        for output_id in contents(cache):
            cache.namespace(NS).delete(output_ids=[output_id])

    with open_cache(tmp_path / "data", at({"backup-page": forget})) as cache:
        fill(cache)
        with pytest.raises(StoreError, match="outpace"):
            cache.backup(tmp_path / "backup")
        assert sorted(os.listdir(tmp_path)) == ["data"]
        fill(cache)
        cache.backup(tmp_path / "backup")


def test_sustained_writes_do_not_keep_a_backup_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is followed by more outputs than it took: the last read takes the rest."""
    monkeypatch.setattr(log_copy, "_PATIENCE_PAGES", 2)
    cache: SuffixCache

    def sync_point(name: str) -> None:
        if name == "backup-page":
            fill(cache, 6, seed=cache.stats().last_lsn)

    with open_cache(tmp_path / "data", sync_point) as cache:
        fill(cache)
        manifest = cache.backup(tmp_path / "backup")
        wanted = contents(cache)
    assert contents_of(tmp_path / "backup") == wanted
    assert max(wanted) == manifest.lsn


@pytest.mark.parametrize("seed", range(3))
def test_backups_under_concurrent_writers(tmp_path: Path, seed: int) -> None:
    """Threads write and forget, and the background seals and merges; each backup is the log as of its LSN."""
    stop = threading.Event()
    written: dict[int, None] = {}
    errors: list[BaseException] = []

    def write(path: str, number: int) -> None:
        random = Random(100 * seed + number)
        mine: list[int] = []
        try:
            for _ in range(4000):
                if stop.is_set():
                    return
                ids = cache.namespace(path).add_outputs([output(random, path) for _ in range(3)])
                written.update(dict.fromkeys(ids))
                mine += ids
                if random.random() < 0.7:
                    cache.namespace(path).delete(output_ids=[mine.pop(random.randrange(len(mine)))])
        except BaseException as error:
            errors.append(error)

    with open_cache(tmp_path / "data", background=True) as cache:
        writers = [threading.Thread(target=write, args=(p, n)) for n, p in enumerate((NS, NS, "other"))]
        for writer in writers:
            writer.start()
        manifests = [cache.backup(tmp_path / f"b{number}") for number in range(3)]
        stop.set()
        for writer in writers:
            writer.join()
        assert not errors
        with parts_of(cache).store._log.read() as view:
            rows = [table_records.decode_deletion(raw, key) for key, raw in view.tables.rows("deletions")]
            deleted = {row.output_id: row.lsn for row in rows}
        assert view.history.floor == 0
    for number, manifest in enumerate(manifests):
        folder = tmp_path / f"b{number}"
        assert check_folder(folder) == []
        found = contents_of(folder)
        wanted = {i for i in written if i <= manifest.lsn and deleted.get(i, manifest.lsn + 1) > manifest.lsn}
        assert found.keys() == wanted


def test_two_backups_into_one_folder(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def second() -> None:
        with pytest.raises(StoreError, match="in use") as caught:
            cache.backup(tmp_path / "backup")
        raised.append(caught.value)

    cache: SuffixCache
    points: dict[str, Callable[[], object]] = {"backup-page": second}
    with open_cache(tmp_path / "data", at(points)) as cache:
        fill(cache)
        cache.backup(tmp_path / "backup")
        assert raised
        wanted = contents(cache)
    assert contents_of(tmp_path / "backup") == wanted


def test_a_backup_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    with open_cache(tmp_path / "data") as cache:
        fill(cache)
        steps = cache.begin_backup(tmp_path / "backup").run()
        next(steps)
        assert (tmp_path / ".backup.partial").is_dir()
        steps.close()
        assert sorted(os.listdir(tmp_path)) == ["data"]
        seal_one(cache, NS)
        cache.check()
