"""Checks find damage, repairs say what they drop, and the repaired folder is sound."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from backup_testing import NS, Contents, contents, first_row, flip, open_cache, output, rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.engine.backup.writer import back_up_folder
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.engine.repair.rebuild import RepairReport, repair_folder
from suffixsvc.errors import InvalidConfigError, StoreCorruptError, StoreForeignError, StoreLockedError
from suffixsvc.selection import Selection
from suffixsvc.store.files.page_walk import META, unpack_meta
from suffixsvc.store.records import keys, log_records
from support.command_line import run_verb
from support.engine_parts import parts_of
from support.long_form import rounds
from support.serving import PATIENCE_S, ServeProcess, socket_dir

PAGE = 4096


def fill(folder: Path, outputs: int = 60) -> Contents:
    """A folder with outputs of two namespaces in segments, tombstones, hot outputs, a note and a TTL."""
    random = Random(outputs)
    with open_cache(folder) as cache:
        ids = cache.namespace(NS).add_outputs([output(random) for _ in range(outputs)])
        cache.namespace("other").add_outputs([output(random, "other", tokens=700) for _ in range(4)])
        cache.seal(NS)
        for output_id in ids[::9]:
            cache.namespace(NS).delete(output_ids=[output_id])
        cache.namespace(NS).add_outputs([output(random) for _ in range(7)])
        cache.namespace(NS).put_note("origin", b"a log" * 500)
        return contents(cache)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A sound folder that tests copy, and what its log holds."""
    folder = tmp_path_factory.mktemp("sound") / "data"
    return folder, fill(folder)


@pytest.fixture
def data(sound: tuple[Path, Contents], tmp_path: Path) -> Path:
    """A copy of the sound folder."""
    return Path(shutil.copytree(sound[0], tmp_path / "data"))


def dropped_ids(report: RepairReport) -> set[int]:
    return {int(each.name) for each in report.dropped if each.kind == "output"}


def require_repaired(folder: Path, wanted: Contents, report: RepairReport) -> Contents:
    """The folder is sound, and holds what was there but for what the report names."""
    assert check_folder(folder) == []
    with open_cache(folder) as cache:
        cache.check()
        found = contents(cache)
        first = min(cache.namespace(NS).add_outputs([output(Random(1))]))
        assert first > max(wanted), "no id is assigned twice"
    lost = wanted.keys() - found.keys()
    assert lost <= dropped_ids(report), "an output was dropped silently"
    assert found.keys() <= wanted.keys(), "a forgotten output is back"
    recovered = {row[1] for row in found.values()} - {NS, "other"}
    nameless = any(each.kind == "principal" for each in report.dropped)
    for output_id, row in found.items():
        expected = list(wanted[output_id])
        if row[1] in recovered:
            expected[1] = row[1]
        if nameless and not row[-1]:
            expected[-1] = ""
        assert list(row) == expected
    assert report.outputs == len(found)
    assert not report.unnamed
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_there_twice(sound: tuple[Path, Contents], data: Path, seed: int) -> None:
    """A page that holds what another one does, as half of one can after an incomplete write."""
    path = data / "data.mdb"
    raw = path.read_bytes()
    pages = [raw[at : at + PAGE] for at in range(0, len(raw), PAGE)]
    leaves = [
        n for n, page in enumerate(pages) if n > 1 and page[:8] == n.to_bytes(8, "little") and page[10] == 2
    ]
    source = next(n for n in leaves if b"SXLG" in pages[n])
    target = Random(seed).choice([n for n in leaves if n != source])
    with path.open("r+b") as file:
        file.seek(target * PAGE + 8)
        file.write(pages[source][8:])
    require_repaired(data, sound[1], repair_folder(data))


def test_a_sound_folder_is_left_alone(data: Path) -> None:
    before = (data / "data.mdb").read_bytes()
    assert check_folder(data) == []
    report = repair_folder(data)
    assert not report.findings
    assert not report.aside
    assert (data / "data.mdb").read_bytes() == before
    with open_cache(data), pytest.raises(StoreLockedError):
        check_folder(data)
    with pytest.raises(InvalidConfigError):
        check_folder(data / "segments")
    with pytest.raises(InvalidConfigError):
        repair_folder(data / "none")


Change = Callable[[Any, Callable[[str], Any]], object]


def changed(database: str, skip: int = 0) -> Change:
    def change(txn: Any, handle: Callable[[str], Any]) -> None:
        key, value = first_row(txn, handle(database), skip)
        txn.put(key, flip(value), db=handle(database))

    return change


def removed(database: str, skip: int = 0) -> Change:
    def change(txn: Any, handle: Callable[[str], Any]) -> None:
        txn.delete(first_row(txn, handle(database), skip)[0], db=handle(database))

    return change


def counts_changed(txn: Any, handle: Callable[[str], Any]) -> None:
    """A valid record with a wrong count."""
    raw_key, _ = first_row(txn, handle("refs"))
    txn.put(raw_key, log_records.encode_refs(keys.payload_key_of(raw_key), 77), db=handle("refs"))


DERIVED = {
    "reference count": changed("refs"),
    "wrong reference count": counts_changed,
    "missing reference count": removed("refs"),
    "missing namespace entry": removed("by_namespace", 5),
    "missing expiry entry": removed("expiry"),
    "missing uuid": removed("uuids"),
    "tombstone": changed("tombstones"),
    "missing tombstone": removed("tombstones"),
    "segment record": changed("segments"),
    "deletion": changed("deletions"),
}


@pytest.mark.parametrize("what", DERIVED)
def test_derived_records_are_rebuilt_without_a_loss(
    data: Path, sound: tuple[Path, Contents], what: str
) -> None:
    rewrite(data, DERIVED[what])
    found = check_folder(data)
    assert found
    assert {each.area for each in found} <= {"records", "segments"}
    planned = repair_folder(data, dry_run=True)
    assert check_folder(data) == found, "a dry run changes nothing"
    assert sorted(p.name for p in data.iterdir() if p.is_dir()) == ["segments"]
    report = repair_folder(data)
    assert dropped_ids(report) == set()
    assert {**planned.as_dict(), "aside": ""} == {**report.as_dict(), "aside": ""}
    assert require_repaired(data, sound[1], report) == sound[1]


@pytest.mark.parametrize("database", ["log", "payloads"])
@pytest.mark.parametrize("how", [changed, removed])
def test_outputs_that_are_lost_are_named(
    data: Path, sound: tuple[Path, Contents], database: str, how: Callable[..., Change]
) -> None:
    rewrite(data, how(database, 3))
    assert check_folder(data)
    report = repair_folder(data)
    lost = dropped_ids(report)
    assert lost
    found = require_repaired(data, sound[1], report)
    assert lost == sound[1].keys() - found.keys()
    written = json.loads((Path(report.aside) / "report.json").read_text())
    assert {int(each["name"]) for each in written["dropped"]} == lost
    for each in written["dropped"]:
        row = sound[1][int(each["name"])]
        # a log record has the principal, the index of the namespace has not
        assert (each["namespace"], each["principal"]) == (row[1], row[-1] if database == "payloads" else "")


def test_the_summary_counts_outputs_that_cannot_be_named(data: Path, sound: tuple[Path, Contents]) -> None:
    rewrite(data, changed("payloads", 3))
    planned = run_verb("repair", "--data", data, "--dry-run", "--json")
    dropped = json.loads(planned.stdout)["dropped"]
    text = run_verb("repair", "--data", data, "--dry-run").stdout
    for each in dropped:
        who = f", written by {each['principal']}" if each["principal"] else ""
        assert f"dropped\toutput {each['name']} of {each['namespace']}{who}\t" in text
    assert f"{len(dropped)} output{'s' * (len(dropped) != 1)} dropped; dry run" in text

    def all_gone(txn: Any, handle: Callable[[str], Any]) -> None:
        for database in ("log", "by_namespace"):
            txn.drop(handle(database), delete=False)

    rewrite(data, all_gone)
    text = run_verb("repair", "--data", data, "--dry-run").stdout
    count = len(sound[1])
    assert f"{count} outputs dropped, {count} of which cannot be named" in text
    with lmdb.open(str(data), map_size=(data / "data.mdb").stat().st_size, max_dbs=16, lib_version=0) as env:
        for damage in (b"damaged", b"again"):  # the transaction before the last one can be read, too
            with env.begin(write=True) as txn:
                txn.put(keys.COUNTERS_KEY, damage, db=env.open_db(b"meta", txn=txn, create=False))
    text = run_verb("repair", "--data", data, "--dry-run").stdout
    assert "0 outputs dropped, and perhaps more that cannot be named" in text


def test_a_service_on_a_damaged_folder_names_check_and_repair(sound: tuple[Path, Contents]) -> None:
    with socket_dir() as folder:
        shutil.copytree(sound[0], folder / "data")
        path = folder / "data" / "data.mdb"
        with path.open("r+b") as file:
            file.truncate(last_page(path) * PAGE // 2)
        with ServeProcess(folder) as serve:
            serve.process = serve.launch()
            assert serve.process.wait(PATIENCE_S) == 2
            refused = serve.output()
    assert "suffixsvc check --data" in refused
    assert "suffixsvc repair --data" in refused


def test_the_path_of_a_namespace_is_lost_and_its_outputs_are_not(
    data: Path, sound: tuple[Path, Contents]
) -> None:
    rewrite(data, changed("namespaces", 1))  # "other"
    report = repair_folder(data)
    assert dropped_ids(report) == set()
    assert any(each.kind == "namespace" and "recovered/" in each.reason for each in report.dropped)
    found = require_repaired(data, sound[1], report)
    assert found.keys() == sound[1].keys()
    assert {row[1] for row in found.values()} == {NS, "recovered/namespace-2"}


@pytest.mark.parametrize("how", [changed, removed])
@pytest.mark.parametrize("place", [0, 1])
def test_the_name_of_a_principal_is_lost_and_its_outputs_are_not(
    data: Path, sound: tuple[Path, Contents], how: Callable[..., Change], place: int
) -> None:
    rewrite(data, how("principals", place))
    assert check_folder(data)
    report = repair_folder(data)
    assert dropped_ids(report) == set()
    [dropped] = [each for each in report.dropped if each.kind == "principal"]
    assert dropped.name == f"number {place + 1}"
    assert check_folder(data) == []
    with open_cache(data) as cache:
        found = contents(cache)
    assert {i: row[:-1] for i, row in found.items()} == {i: row[:-1] for i, row in sound[1].items()}
    names = {(sound[1][i][-1], row[-1]) for i, row in found.items()}
    [lost] = {before for before, after in names if before != after}
    assert names == {("", ""), (lost, ""), *((each, each) for each in {"ann", "bob"} - {lost})}


def test_a_row_of_a_principal_that_does_not_exist_is_found(data: Path) -> None:
    def change(txn: Any, handle: Callable[[str], Any]) -> None:
        key, raw = first_row(txn, handle("log"))
        record = replace(log_records.decode_log(raw, keys.lsn_of(key)), principal=9)
        txn.put(key, log_records.encode_log(record), db=handle("log"))

    rewrite(data, change)
    assert ["unknown principal" in each.message for each in check_folder(data)] == [True]


def test_a_requested_erasure_is_kept(data: Path) -> None:
    with open_cache(data) as cache:
        cache.delete(Selection(NS, [next(iter(contents(cache)))]))
        requested, wanted = parts_of(cache).store.erasure_due(), contents(cache)
        assert requested
    rewrite(data, changed("refs"))
    report = repair_folder(data)
    with open_cache(data) as cache:
        assert parts_of(cache).store.erasure_due() == requested
        cache.check()
    require_repaired(data, wanted, report)


def test_a_damaged_state_is_named(data: Path, sound: tuple[Path, Contents]) -> None:
    with open_cache(data) as cache:
        assert cache.namespace(NS).note("origin")
    rewrite(data, changed("state"))
    report = repair_folder(data)
    assert any("state" in each.name for each in report.dropped)
    assert require_repaired(data, sound[1], report) == sound[1]


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "not a segment"])
def test_damaged_segments(data: Path, sound: tuple[Path, Contents], how: str) -> None:
    victim = sorted((data / "segments").iterdir())[1]
    raw = bytearray(victim.read_bytes())
    if how == "gone":
        victim.unlink()
    else:
        raw[len(raw) // 2] ^= how == "flipped"
        victim.write_bytes(b"mine" if how == "not a segment" else raw[: len(raw) - (how == "cut")])
    found = check_folder(data)
    assert [each.area for each in found] == ["segments"]
    assert victim.name in found[0].message
    report = repair_folder(data)
    assert report.rebuilt == [victim.name]
    assert not report.dropped
    assert (Path(report.aside) / victim.name).exists() == (how != "gone")
    assert require_repaired(data, sound[1], report) == sound[1]


def test_a_truncated_file(data: Path, sound: tuple[Path, Contents]) -> None:
    path = data / "data.mdb"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - PAGE)
    assert check_folder(data)
    report = repair_folder(data)  # the last pages were not used
    assert require_repaired(data, sound[1], report) == sound[1]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_that_ends_in_its_pages(data: Path, sound: tuple[Path, Contents], share: float) -> None:
    """What is lost is named, or counted, and what is left is sound."""
    path = data / "data.mdb"
    with path.open("r+b") as file:
        file.truncate(int(last_page(path) * share) * PAGE)
    assert check_folder(data)
    report = repair_folder(data)
    assert any("the file ends" in line for line in report.unreadable)
    assert check_folder(data) == []
    with open_cache(data) as cache:
        cache.check()
        found = contents(cache)
    lost = sound[1].keys() - found.keys()
    assert found.keys() <= sound[1].keys()
    assert report.unnamed in (None, len(lost - dropped_ids(report)))


def test_no_meta_page_can_be_read(data: Path) -> None:
    with (data / "data.mdb").open("r+b") as file:
        file.write(b"\xff" * 2 * PAGE)
    before = (data / "data.mdb").read_bytes()
    for work in (check_folder, repair_folder):
        with pytest.raises(StoreForeignError, match=r"data\.mdb") as raised:
            work(data)
        assert raised.value.remedy
    assert (data / "data.mdb").read_bytes() == before
    assert not list(data.glob("damaged-*"))


@settings(max_examples=rounds(10, full=40), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["bit", "bytes", "page", "swapped"]))
def test_any_page_may_be_damaged(
    sound: tuple[Path, Contents],
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    kind: str,
) -> None:
    """What check finds, repair says; nothing is dropped silently, and nothing forgotten comes back."""
    random = Random(seed)
    data = Path(shutil.copytree(sound[0], tmp_path_factory.mktemp("page") / "data"))
    path = data / "data.mdb"
    pages = last_page(path) + 1
    raw = bytearray(path.read_bytes())
    page = random.randrange(pages)
    at = page * PAGE
    if kind == "bit":
        raw[at + random.randrange(PAGE)] ^= 1 << random.randrange(8)
    elif kind == "bytes":
        first = random.randrange(PAGE - 16)
        raw[at + first : at + first + 16] = random.randbytes(16)
    elif kind == "page":
        raw[at : at + PAGE] = random.randbytes(PAGE)
    else:
        other = random.randrange(2, pages) * PAGE
        raw[at : at + PAGE] = raw[other : other + PAGE]
    path.write_bytes(raw)
    findings = check_folder(data)
    report = repair_folder(data)
    assert bool(findings) == bool(report.findings)
    if not report.findings:  # a byte that nothing uses
        with open_cache(data) as cache:
            assert contents(cache) == sound[1]
    else:
        assert (Path(report.aside) / "data.mdb").read_bytes() == bytes(raw)
        if page < 2:  # the transaction before may be all that is left
            assert check_folder(data) == []
        else:
            require_repaired(data, sound[1], report)
    shutil.rmtree(data.parent)


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("place", [8, 10, 16, 20, 24, 40, 48, 96, 100, 136, 144])
def test_a_damaged_meta_page(data: Path, sound: tuple[Path, Contents], slot: int, place: int) -> None:
    """The other one has the same rows, or those before the last transaction, and the report says so."""
    path = data / "data.mdb"
    raw = bytearray(path.read_bytes())
    raw[slot * PAGE + place] ^= 4
    path.write_bytes(raw)
    found = check_folder(data)
    if not found:  # a field that nothing uses
        with open_cache(data) as cache:
            assert contents(cache) == sound[1]
        return
    report = repair_folder(data)
    assert check_folder(data) == []
    with open_cache(data) as cache:
        lost = sound[1].keys() - contents(cache).keys() - dropped_ids(report)
    assert not lost or any("last transaction" in line for line in report.unreadable)


def last_page(path: Path) -> int:
    """The last page that is used."""
    raw = path.read_bytes()
    return max(unpack_meta(raw[slot * PAGE : slot * PAGE + META.size]).last_page for slot in (0, 1))


def test_a_large_log_with_branch_pages(tmp_path: Path) -> None:
    """A damaged branch page hides leaf pages, which are found because they are not free."""
    data = tmp_path / "data"
    wanted = fill(data, 900)
    raw = bytearray((data / "data.mdb").read_bytes())
    branches = [
        page
        for page in range(2, len(raw) // PAGE)
        if raw[page * PAGE : page * PAGE + 8] == page.to_bytes(8, "little") and raw[page * PAGE + 10] == 1
    ]
    assert branches
    for page in branches:
        raw[page * PAGE + 16 : (page + 1) * PAGE] = bytes(PAGE - 16)
    (data / "data.mdb").write_bytes(raw)
    assert check_folder(data)
    report = repair_folder(data)
    assert report.unreadable
    assert require_repaired(data, wanted, report) == wanted


@pytest.mark.parametrize("database", ["log", "payloads", "state"])
def test_a_damaged_log_is_not_backed_up(data: Path, tmp_path: Path, database: str) -> None:
    """A backup with less than the log would look like a complete one."""
    rewrite(data, changed(database, 0))
    with pytest.raises(StoreCorruptError):
        back_up_folder(data, tmp_path / "backup", progress=lambda *step: None)
    assert os.listdir(tmp_path) == ["data"]


def test_the_damaged_file_can_be_put_back(data: Path, sound: tuple[Path, Contents]) -> None:
    rewrite(data, changed("refs"))
    damaged = (data / "data.mdb").read_bytes()
    report = repair_folder(data)
    assert os.listdir(report.aside)
    os.replace(Path(report.aside) / "data.mdb", data / "data.mdb")
    assert (data / "data.mdb").read_bytes() == damaged
    with pytest.raises(StoreCorruptError), SuffixCache(data, background=False) as cache:
        cache.check()
