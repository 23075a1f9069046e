"""Repairs of logs that were served with access control: no damage opens one to all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from backup_testing import NS, open_cache, rewrite

from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.engine.repair.rebuild import repair_folder
from suffixsvc.errors import StoreError, StoreForeignError
from suffixsvc.store.folder_reading import reading
from suffixsvc.store.records import keys

PAGE = 4096


def is_marked(data: Path) -> bool:
    with reading(data) as view:
        return view.access_controlled


@pytest.fixture(params=[True, False], ids=["marked", "unmarked"])
def mark(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def data(tmp_path: Path, mark: bool) -> Path:
    with open_cache(tmp_path / "data") as cache:
        cache.namespace(NS).add_output(list(range(30)))
        cache.set_access_controlled(mark)
    return tmp_path / "data"


def _refs_lost(txn: Any, db: Any) -> None:
    with txn.cursor(db=db("refs")) as cursor:
        cursor.first()
        cursor.delete()


def _schema_changed(txn: Any, db: Any, at: int = 0) -> None:
    raw = bytearray(txn.get(keys.SCHEMA_KEY, db=db("meta")))
    raw[at] ^= 1
    txn.put(keys.SCHEMA_KEY, bytes(raw), db=db("meta"))


def _schema_lost(txn: Any, db: Any) -> None:
    txn.delete(keys.SCHEMA_KEY, db=db("meta"))


def test_a_repair_keeps_the_mark(data: Path, mark: bool) -> None:
    rewrite(data, _refs_lost)
    assert not repair_folder(data).dropped
    assert is_marked(data) == mark
    assert check_folder(data) == []


@pytest.mark.parametrize("at", [4, 6, 20], ids=["version", "flags", "checksum"])
def test_a_repair_of_a_log_whose_mark_is_lost_sets_it(data: Path, at: int) -> None:
    """The record of the mark is one that every open needs: without it the log is not opened as unmarked."""
    rewrite(data, partial(_schema_changed, at=at))
    _require_set_by_repair(data)


def test_a_repair_of_a_log_without_the_page_of_the_mark_sets_it(data: Path) -> None:
    raw = bytearray((data / "data.mdb").read_bytes())
    for page in range(2 * PAGE, len(raw), PAGE):  # those of earlier transactions as well
        if b"SXHD" in raw[page : page + PAGE]:
            raw[page + 16 : page + PAGE] = bytes(PAGE - 16)
    (data / "data.mdb").write_bytes(raw)
    _require_set_by_repair(data)


def _require_set_by_repair(data: Path) -> None:
    with pytest.raises(StoreError):
        open_cache(data)
    assert check_folder(data)
    report = repair_folder(data)
    assert [each.kind for each in report.dropped if each.name == "access control"] == ["record"]
    assert report.outputs == 1
    assert is_marked(data)
    assert check_folder(data) == []


@pytest.mark.parametrize("damage", [_schema_lost, _schema_changed], ids=["lost", "magic"])
def test_a_file_without_the_record_is_not_opened_and_not_repaired(data: Path, damage: Any) -> None:
    """It is taken for one of another program."""
    rewrite(data, damage)
    before = (data / "data.mdb").read_bytes()
    for work in (open_cache, check_folder, repair_folder):
        with pytest.raises(StoreForeignError):
            work(data)
    assert (data / "data.mdb").read_bytes() == before
