"""Processes are killed with SIGKILL at every step of a backup, a restore and a repair."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from backup_testing import NS, contents, contents_of, first_row, flip, open_cache, output, rewrite

from suffixsvc.engine.backup.manifest import read_manifest
from suffixsvc.engine.backup.restore import restore
from suffixsvc.engine.repair.inspection import check_folder
from suffixsvc.engine.repair.rebuild import repair_folder
from suffixsvc.errors import StoreForeignError
from support.forking import ForkServer

pytestmark = pytest.mark.crash

BACKUP = ["backup-begun", "backup-page", "backup-rest", "backup-segment", "backup-ended", "backup-copied"]
BACKUP += ["backup-described", "folder-built", "folder-renamed"]
RESTORE = ["restore-begun", "restore-data", "restore-segment", "restore-renewed", "folder-built"]
RESTORE += ["folder-renamed"]
REPAIR = ["repair-built", "repair-aside", "repair-renamed"]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer(Path(__file__).with_name("backup_child.py"), patience_seconds=120.0)
    yield server
    server.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder ``data`` with outputs in segments, tombstones, and outputs that no segment holds."""
    random = Random(11)
    with open_cache(tmp_path / "data") as cache:
        ids = cache.namespace(NS).add_outputs([output(random) for _ in range(30)])
        cache.seal()
        cache.namespace(NS).delete(output_ids=[ids[4]])
        cache.namespace(NS).add_outputs([output(random) for _ in range(5)])
    return tmp_path


def run(server: ForkServer, root: Path, work: str, point: str) -> list[str]:
    """Kill a child at a point; what it reported before."""
    lines: list[str] = []
    order = {"work": work, "root": str(root), "point": point, "hits": 1}
    assert server.run(order, lines.append, None) == -signal.SIGKILL, lines
    assert f"! {point}" in lines
    return lines


@pytest.mark.parametrize("point", BACKUP)
def test_a_killed_backup(fork_server: ForkServer, root: Path, point: str) -> None:
    """The folder is complete or not there; nothing acknowledged is lost; the next backup succeeds."""
    lines = run(fork_server, root, "backup", point)
    acknowledged = {int(i) for line in lines if line.startswith("+") for i in line.split()[1:]}
    if point == "folder-renamed":
        assert read_manifest(root / "backup").outputs == len(contents_of(root / "backup"))
        shutil.rmtree(root / "backup")
    else:
        assert sorted(os.listdir(root)) == [".backup.partial", "data"]
        for folder in (root / "backup", root / ".backup.partial"):
            if folder.exists() and point in ("backup-described", "folder-built"):
                continue  # complete but for its name; its owner is gone
            with pytest.raises(StoreForeignError):
                restore(folder, root / "restored")
    with open_cache(root / "data") as cache:
        cache.check()
        assert acknowledged <= contents(cache).keys()
        cache.backup(root / "backup")
        wanted = contents(cache)
    assert sorted(os.listdir(root)) == ["backup", "data"]
    assert check_folder(root / "backup") == []
    assert contents_of(root / "backup") == wanted


@pytest.mark.parametrize("point", RESTORE)
def test_a_killed_restore(fork_server: ForkServer, root: Path, point: str) -> None:
    with open_cache(root / "data") as cache:
        cache.backup(root / "backup")
        wanted = contents(cache)
    run(fork_server, root, "restore", point)
    assert check_folder(root / "backup") == []
    if point == "folder-renamed":
        assert check_folder(root / "restored") == []
    else:
        assert not (root / "restored").exists()
        restore(root / "backup", root / "restored")
    assert sorted(os.listdir(root)) == ["backup", "data", "restored"]
    assert contents_of(root / "restored") == wanted


@pytest.mark.parametrize("point", REPAIR)
def test_a_killed_repair(fork_server: ForkServer, root: Path, point: str) -> None:
    """The folder is the damaged one or the repaired one; the damaged file is never lost."""
    wanted = contents_of(root / "data")
    shutil.copytree(root / "data", root / "damaged")
    path = root / "damaged" / "data.mdb"

    def damage(txn: Any, database: Callable[[str], Any]) -> None:
        key, value = first_row(txn, database("refs"))
        txn.put(key, flip(value), db=database("refs"))

    rewrite(root / "damaged", damage)
    raw = path.read_bytes()
    run(fork_server, root, "repair", point)
    aside = sorted((root / "damaged").glob("damaged-*"))
    assert len(aside) == (point != "repair-built")
    if aside:
        assert (aside[0] / "data.mdb").read_bytes() == raw
    if point == "repair-renamed":
        assert check_folder(root / "damaged") == []
        report = repair_folder(root / "damaged")
        assert not report.findings
    else:
        assert path.read_bytes() == raw
        report = repair_folder(root / "damaged")
        assert report.findings
        assert not report.dropped
        assert (Path(report.aside) / "data.mdb").read_bytes() == raw
    assert contents_of(root / "damaged") == wanted
