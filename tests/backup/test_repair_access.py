"""Repairs of logs that were served with access control: no damage opens one to all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from backup_testing import NS, open_cache, rewrite

from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.engine.repair.rebuild import repair_folder
from suffixsvc.errors import StoreError
from suffixsvc.store.folder_reading import reading
from suffixsvc.store.records import keys


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


@pytest.mark.parametrize(
    "damage",
    [_schema_lost, *(partial(_schema_changed, at=at) for at in (0, 4, 6, 20))],
    ids=["lost", "magic", "version", "flags", "checksum"],
)
def test_a_repair_of_a_log_whose_mark_is_lost_sets_it(data: Path, damage: Any) -> None:
    """The record of the mark is one that every open needs: without it the log is not opened as unmarked."""
    rewrite(data, damage)
    with pytest.raises(StoreError):
        open_cache(data)
    assert check_folder(data)
    report = repair_folder(data)
    assert [each.kind for each in report.dropped if each.name == "access control"] == ["record"]
    assert report.outputs == 1
    assert is_marked(data)
    assert check_folder(data) == []
